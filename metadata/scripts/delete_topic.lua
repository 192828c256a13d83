#!lua flags=allow-oom
-- Deletes a topic: record with its leader, index entry, subscriptions and schemas go, its segments go to the garbage list,
-- and the change log says so; or nothing happens.
-- KEYS: record, index, changes, leaders, garbage, subscriptions, members..., schemas, deleted
-- ARGV: op, incarnation, version, index field, path, log length, number of subscriptions, subscription..., descriptor...
-- Returns {outcome, incarnation, version}; outcome is done, missing or conflict.
local op, incarnation, version = ARGV[1], ARGV[2], ARGV[3]
local current = redis.call('HMGET', KEYS[1], 'incarnation', 'version')
if not current[1] then return {'missing', '', ''} end
if current[1] ~= incarnation or current[2] ~= version then
  return {'conflict', current[1], current[2]}
end
local subscriptions = tonumber(ARGV[7])
if redis.call('HLEN', KEYS[6]) ~= subscriptions then return {'conflict', current[1], current[2]} end
for i = 8, 7 + subscriptions do
  if redis.call('HEXISTS', KEYS[6], ARGV[i]) == 0 then return {'conflict', current[1], current[2]} end
end
redis.call('HLEN', KEYS[2])
redis.call('XLEN', KEYS[3])
redis.call('HLEN', KEYS[4])
redis.call('HLEN', KEYS[5])

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('UNLINK', KEYS[1])
for i = 6, #KEYS do redis.call('UNLINK', KEYS[i]) end
redis.call('HDEL', KEYS[2], ARGV[4])
redis.call('HDEL', KEYS[4], ARGV[5])
for i = 8 + subscriptions, #ARGV do
  redis.call('HSET', KEYS[5], incarnation .. '/' .. ARGV[5] .. '/' .. ARGV[i], now)
end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*',
  'topic', ARGV[5], 'kind', 'deleted', 'incarnation', incarnation, 'version', version, 'op', op)
return {'done', incarnation, version}
