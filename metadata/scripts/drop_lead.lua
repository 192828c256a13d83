#!lua flags=allow-oom
-- Ends a leadership. With an activity given, only if nobody has registered since it was read: then the topic needs no leader.
-- KEYS: record, leaders, changes
-- ARGV: incarnation, leader, activity ('' to leave the topic to another node), path, log length, op
-- Returns 1 if the topic is without this leader now, 0 if it has become busy.
local current = redis.call('HMGET', KEYS[1], 'incarnation', 'leader', 'activity')
if not current[1] or current[1] ~= ARGV[1] or current[2] ~= ARGV[2] then return 1 end
if ARGV[3] ~= '' and (current[3] or '0') ~= ARGV[3] then return 0 end
redis.call('HLEN', KEYS[2])
redis.call('XLEN', KEYS[3])

redis.call('HDEL', KEYS[1], 'leader')
local kind = 'controller'
if ARGV[3] ~= '' then
  redis.call('HDEL', KEYS[2], ARGV[4])
else
  redis.call('HSET', KEYS[2], ARGV[4], '')
  kind = 'resigned'
end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*',
  'topic', ARGV[4], 'kind', kind, 'incarnation', ARGV[1], 'op', ARGV[6])
return 1
