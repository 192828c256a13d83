#!lua flags=allow-oom
-- Writes fields of a partitioned topic's record if it is still the expected one, and says so in the change log.
-- KEYS: partitioned, changes
-- ARGV: op, incarnation, version, path, log length, (field, value)...
-- Returns {outcome, incarnation, version}; outcome is done, missing or conflict.
local op = ARGV[1]
local current = redis.call('HMGET', KEYS[1], 'op', 'incarnation', 'version')
if not current[2] then return {'missing', '', ''} end
if current[1] == op then return {'done', current[2], current[3]} end
if current[2] ~= ARGV[2] or current[3] ~= ARGV[3] then return {'conflict', current[2], current[3]} end
redis.call('XLEN', KEYS[2])

local version = string.format('%.0f', tonumber(ARGV[3]) + 1)
redis.call('HSET', KEYS[1], 'version', version, 'op', op)
for i = 6, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*',
  'topic', ARGV[4], 'kind', 'classic', 'incarnation', current[2], 'op', op)
return {'done', current[2], version}
