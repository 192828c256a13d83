#!lua flags=allow-oom
-- Deletes a classic log: its state and index entry go, its storage goes to the garbage list, and the change log says so.
-- KEYS: classic, index, changes, garbage
-- ARGV: op, incarnation ('' for whichever it is), index field, path, log length, '1' if it has been migrated
-- Returns {outcome, incarnation, version}; outcome is done, missing, conflict (another incarnation) or migrated (and not
-- expected to be, or the other way round).
local current = redis.call('HMGET', KEYS[1], 'incarnation', 'migrated')
if not current[1] then return {'missing', '', ''} end
if (current[2] or '') ~= ARGV[6] then return {'migrated', current[1], ''} end
if ARGV[2] ~= '' and current[1] ~= ARGV[2] then return {'conflict', current[1], ''} end
redis.call('HLEN', KEYS[2])
redis.call('XLEN', KEYS[3])
redis.call('HLEN', KEYS[4])

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('UNLINK', KEYS[1])
redis.call('HDEL', KEYS[2], ARGV[3])
-- As a segment stands there, but without a descriptor. The schemas of one that was migrated are the scalable topic's now.
redis.call('HSET', KEYS[4], current[1] .. '/' .. ARGV[4] .. '/' .. (current[2] and ':' or ''), now)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*',
  'topic', ARGV[4], 'kind', 'classic', 'incarnation', current[1], 'op', ARGV[1])
return {'done', current[1], '0'}
