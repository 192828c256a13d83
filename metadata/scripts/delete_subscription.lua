#!lua flags=allow-oom
-- Forgets a subscription with its consumers. KEYS: record, subscriptions, members, changes
-- ARGV: subscription, force ('1'), path, log length, op
-- Returns done, missing (the topic), unknown (the subscription) or busy (it has consumers).
local incarnation = redis.call('HGET', KEYS[1], 'incarnation')
if not incarnation then return 'missing' end
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return 'unknown' end
if ARGV[2] ~= '1' then
  for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
    if string.sub(field, 1, 2) == 'c:' then return 'busy' end
  end
end
redis.call('XLEN', KEYS[4])

redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('UNLINK', KEYS[3])
redis.call('HINCRBY', KEYS[1], 'activity', 1)
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[4], '*',
  'topic', ARGV[3], 'kind', 'consumers', 'incarnation', incarnation, 'op', ARGV[5])
return 'done'
