#!lua flags=no-writes
-- The state of a segment, empty where there is none or what is left of it is garbage already.
-- KEYS: segment, garbage. ARGV: path and descriptor, as they stand in the garbage list. Returns a flat list.
local incarnation = redis.call('HGET', KEYS[1], 'incarnation')
if not incarnation or redis.call('HEXISTS', KEYS[2], incarnation .. '/' .. ARGV[1]) == 1 then return {} end
return redis.call('HGETALL', KEYS[1])
