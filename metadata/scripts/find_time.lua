#!lua flags=no-writes
-- The index of the first entry of a log that has this time or a later one; of the next entry if there is none. Times never go
-- back within a log, so it is a binary search; it is done here, because a look at a header would send its body, too.
-- KEYS: segment, log. ARGV: incarnation, time
-- Returns {outcome, index}; outcome is done or missing.
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'first', 'next')
if held[1] ~= ARGV[1] then return {'missing', 0} end
local wanted = tonumber(ARGV[2])
local low, high = tonumber(held[2] or '0'), tonumber(held[3] or '0')
while low < high do
  local middle = math.floor((low + high) / 2)
  local id = string.format('%.0f-0', middle + 1)
  local header = redis.call('XRANGE', KEYS[2], id, id)[1][2][2]
  local time = 0
  for i = 3, 10 do time = time * 256 + string.byte(header, i) end
  if time < wanted then low = middle + 1 else high = middle end
end
return {'done', low}
