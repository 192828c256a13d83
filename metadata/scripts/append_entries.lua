#!lua
-- Appends entries to a segment's log under the claim of its owner: all of them or nothing.
-- KEYS: segment, log, producers if any mark is given
-- ARGV: incarnation, owner, index of the first entry, size of the log after it, size of the largest of these entries, time of
--   the first, time of the last, number of entries, (header, body)..., (producer, mark)...
-- Returns done, missing, fenced, sealed, skipped (the next index is another one) or backwards (in time).
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'owner', 'state', 'next', 'time', 'largest')
if held[1] ~= ARGV[1] then return 'missing' end
if held[2] ~= ARGV[2] then return 'fenced' end
if held[3] ~= 'ACTIVE' then return 'sealed' end
if (held[4] or '0') ~= ARGV[3] then return 'skipped' end
if tonumber(held[5] or '0') > tonumber(ARGV[6]) then return 'backwards' end
if KEYS[3] then redis.call('HLEN', KEYS[3]) end

-- Ids begin with 1, because a stream has no entry 0-0. If the first one is accepted, all are.
local index = tonumber(ARGV[3])
local last = 8 + 2 * tonumber(ARGV[8])
for i = 9, last, 2 do
  index = index + 1
  redis.call('XADD', KEYS[2], string.format('%.0f-0', index), 'h', ARGV[i], 'd', ARGV[i + 1])
end
redis.call('HSET', KEYS[1], 'next', string.format('%.0f', index), 'size', ARGV[4], 'time', ARGV[7])
if tonumber(held[6] or '0') < tonumber(ARGV[5]) then redis.call('HSET', KEYS[1], 'largest', ARGV[5]) end
for i = last + 1, #ARGV, 2 do redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
return 'done'
