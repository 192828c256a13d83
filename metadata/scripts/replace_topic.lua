#!lua flags=allow-oom
-- Replaces a topic's record: a whole transition (children created, parents sealed, layout written) or nothing.
-- KEYS: record, changes, segments created..., segments sealed..., segments removed...
-- ARGV: op, incarnation, version, value, path, log length, number created, number sealed
-- Returns {outcome, incarnation, version}; outcome is done, missing or conflict.
local op, incarnation = ARGV[1], ARGV[2]
local current = redis.call('HMGET', KEYS[1], 'op', 'incarnation', 'version')
if not current[2] then return {'missing', '', ''} end
if current[1] == op then return {'done', current[2], current[3]} end
if current[2] ~= incarnation or current[3] ~= ARGV[3] then
  return {'conflict', current[2], current[3]}
end
redis.call('XLEN', KEYS[2])
for i = 3, #KEYS do redis.call('HLEN', KEYS[i]) end

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local version = string.format('%.0f', tonumber(ARGV[3]) + 1)
local last_created = 2 + tonumber(ARGV[7])
local last_sealed = last_created + tonumber(ARGV[8])
for i = 3, #KEYS do
  if i <= last_created then
    redis.call('DEL', KEYS[i])
    redis.call('HSET', KEYS[i], 'state', 'ACTIVE', 'incarnation', incarnation)
  elseif i <= last_sealed then
    redis.call('HSET', KEYS[i], 'state', 'SEALED')
  else
    redis.call('UNLINK', KEYS[i])
  end
end
redis.call('HSET', KEYS[1], 'value', ARGV[4], 'version', version, 'mtime', now, 'op', op)
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[6], '*',
  'topic', ARGV[5], 'kind', 'changed', 'incarnation', incarnation, 'version', version, 'op', op)
return {'done', incarnation, version}
