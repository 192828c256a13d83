#!lua flags=allow-oom
-- Ends the claim of a segment's owner, if it still has it.
-- KEYS: segment; of a segment of a scalable topic also record, changes
-- ARGV: incarnation, owner, session, segment id, path, log length, op
-- Returns 1 if it changed something.
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'owner')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return 0 end
local told = false
if KEYS[2] then
  local record = redis.call('HMGET', KEYS[2], 'incarnation', 'owner:' .. ARGV[4])
  told = record[1] == ARGV[1] and record[2] == ARGV[3]
  redis.call('XLEN', KEYS[3])
end

redis.call('HSET', KEYS[1], 'owner', '')
redis.call('HDEL', KEYS[1], 'figures')
if told then
  redis.call('HDEL', KEYS[2], 'owner:' .. ARGV[4])
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*',
    'topic', ARGV[5], 'kind', 'owner', 'incarnation', ARGV[1], 'op', ARGV[7])
end
return 1
