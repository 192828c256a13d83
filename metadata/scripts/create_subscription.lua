#!lua
-- Records a subscription. KEYS: record, subscriptions, changes
-- ARGV: subscription, type, settings, path, log length, op, most subscriptions
-- Returns {outcome, type}; outcome is done, missing (the topic), mismatch or crowded (no more subscriptions).
local incarnation = redis.call('HGET', KEYS[1], 'incarnation')
if not incarnation then return {'missing', ''} end
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known then
  local type = string.match(known, '^%u+') or ''
  return {type == ARGV[2] and 'done' or 'mismatch', type}
end
if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[7]) then return {'crowded', ''} end
redis.call('XLEN', KEYS[3])

redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
redis.call('HINCRBY', KEYS[1], 'activity', 1)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*',
  'topic', ARGV[4], 'kind', 'consumers', 'incarnation', incarnation, 'op', ARGV[6])
return {'done', ARGV[2]}
