#!lua flags=allow-oom
-- Deletes a topic: record, index entry and segment states go, the change log says so; or nothing happens.
-- KEYS: record, index, changes, segment...
-- ARGV: op, incarnation, version, index field, path, log length
-- Returns {outcome, incarnation, version}; outcome is done, missing or conflict.
local op, incarnation, version = ARGV[1], ARGV[2], ARGV[3]
local current = redis.call('HMGET', KEYS[1], 'incarnation', 'version')
if not current[1] then return {'missing', '', ''} end
if current[1] ~= incarnation or current[2] ~= version then
  return {'conflict', current[1], current[2]}
end
redis.call('HLEN', KEYS[2])
redis.call('XLEN', KEYS[3])

redis.call('UNLINK', KEYS[1])
for i = 4, #KEYS do redis.call('UNLINK', KEYS[i]) end
redis.call('HDEL', KEYS[2], ARGV[4])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*',
  'topic', ARGV[5], 'kind', 'deleted', 'incarnation', incarnation, 'version', version, 'op', op)
return {'done', incarnation, version}
