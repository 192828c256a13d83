#!lua flags=no-writes
-- Reads entries of a log, in the order of the ranges, until that is enough; the first is given however large it is.
-- KEYS: log. ARGV: most bytes, (id of the first, id of the last, most entries)...
-- Returns entries as XRANGE does.
local room = tonumber(ARGV[1])
local found = {}
for i = 2, #ARGV, 3 do
  local from, left = ARGV[i], tonumber(ARGV[i + 2])
  while left > 0 do
    local page = redis.call('XRANGE', KEYS[1], from, ARGV[i + 1], 'COUNT', math.min(left, 8))
    if #page == 0 then break end
    for _, entry in ipairs(page) do
      room = room - #entry[2][4]
      if room < 0 and #found > 0 then return found end
      found[#found + 1] = entry
    end
    left = left - #page
    from = '(' .. page[#page][1]
  end
end
return found
