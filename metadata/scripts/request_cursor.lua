#!lua flags=allow-oom
-- Asks the owner of a log, now or whenever it has one, to move the cursor of a subscription. A later request takes the place
-- of one that was not carried out yet.
-- KEYS: segment, changes
-- ARGV: incarnation, subscription, request, path, kind, log length, op
-- Returns done or missing.
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'state')
if held[1] ~= ARGV[1] or held[2] == 'REMOVED' then return 'missing' end
redis.call('XLEN', KEYS[2])

redis.call('HSET', KEYS[1], 'request:' .. ARGV[2], ARGV[3])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[6], '*',
  'topic', ARGV[4], 'kind', ARGV[5], 'incarnation', ARGV[1], 'op', ARGV[7])
return 'done'
