#!lua flags=allow-oom
-- Forgets a group of CHECKPOINT readers that has none left, if the leader is still the leader and nobody has come.
-- KEYS: record, subscriptions, members, changes
-- ARGV: incarnation, leader, subscription, path, log length, op
-- Returns done, fenced or conflict.
local current = redis.call('HMGET', KEYS[1], 'incarnation', 'leader')
if current[1] ~= ARGV[1] or current[2] ~= ARGV[2] then return 'fenced' end
local known = redis.call('HGET', KEYS[2], ARGV[3])
if not known then return 'done' end
if string.match(known, '^%u+') ~= 'CHECKPOINT' then return 'conflict' end
for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
  if string.sub(field, 1, 2) == 'c:' then return 'conflict' end
end
redis.call('XLEN', KEYS[4])

redis.call('HDEL', KEYS[2], ARGV[3])
redis.call('UNLINK', KEYS[3])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[5], '*',
  'topic', ARGV[4], 'kind', 'consumers', 'incarnation', ARGV[1], 'op', ARGV[6])
return 'done'
