#!lua flags=allow-oom
-- Seals one partition of a topic that is being migrated, and makes it if it is missing: nothing is appended from then on.
-- KEYS: classic, index, changes, mark
-- ARGV: op, incarnation of the topic, index field, path, log length, store id
-- Returns {outcome, incarnation, version}; outcome is done, conflict (a log of another topic stands there) or lost (the
-- mark is not that of our store).
local incarnation = ARGV[2]
local current = redis.call('HMGET', KEYS[1], 'incarnation', 'migrated')
if redis.call('GET', KEYS[4]) ~= ARGV[6] then return {'lost', '', ''} end
if current[1] and current[1] ~= incarnation then return {'conflict', current[1], ''} end
if current[2] then return {'done', incarnation, '0'} end
redis.call('HLEN', KEYS[2])
redis.call('XLEN', KEYS[3])

if not current[1] then
  local time = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'incarnation', incarnation,
    'ctime', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
  redis.call('HSET', KEYS[2], ARGV[3], incarnation)
end
redis.call('HSET', KEYS[1], 'state', 'SEALED', 'migrated', '1')
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*',
  'topic', ARGV[4], 'kind', 'classic', 'incarnation', incarnation, 'op', ARGV[1])
return {'done', incarnation, '0'}
