#!lua flags=allow-oom
-- Notes that a connection of a consumer is gone, or that the consumer has left for good. Only if that connection is still the
-- one that the consumer is attached by: a late close never hurts who came after it.
-- KEYS: record, members, changes
-- ARGV: consumer, nonce of the connection, new attachment ('' for leaving), path, log length, op
-- Returns 1 if it changed something.
local attached = redis.call('HGET', KEYS[2], 'c:' .. ARGV[1])
if not attached or attached == ARGV[3] or not string.find(attached, ARGV[2], 1, true) then return 0 end
redis.call('HLEN', KEYS[1])
redis.call('XLEN', KEYS[3])

if ARGV[3] == '' then
  redis.call('HDEL', KEYS[2], 'c:' .. ARGV[1], 'a:' .. ARGV[1])
else
  redis.call('HSET', KEYS[2], 'c:' .. ARGV[1], ARGV[3])
end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*',
  'topic', ARGV[4], 'kind', 'consumers', 'incarnation', '', 'op', ARGV[6])
return 1
