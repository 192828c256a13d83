#!lua flags=no-writes
-- The index of the first entry of a log that was published at this time or later; of the next entry if there is none.
-- Producers say when they publish, so times only rise roughly: a binary search, and then a look at the few entries before
-- the place that it found. An entry that says nothing that can be meant has the time at which it arrived.
-- KEYS: segment, log. ARGV: incarnation, time, most entries of that last look, and most bytes of them
-- Returns {outcome, index}; outcome is done or missing.
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'first', 'next')
if held[1] ~= ARGV[1] then return {'missing', 0} end
local wanted = tonumber(ARGV[2])
local byte = string.byte
local looked = 0

local function number(text, from, to)
  local value = 0
  for i = from, to do value = value * 256 + byte(text, i) end
  return value
end

-- A varint, and where it ends; nothing where it does not end in time.
local function varint(text, at, stop)
  local value, unit = 0, 1
  for i = at, math.min(at + 9, stop) do
    local part = byte(text, i)
    value = value + part % 128 * unit
    if part < 128 then return value, i + 1 end
    unit = unit * 128
  end
end

-- Field 3 of the metadata, which stand behind their length, and that behind a checksum if there is one.
local function said(body)
  local at = 1
  if byte(body, 1) == 14 and byte(body, 2) == 1 then at = 7 end
  if #body < at + 3 then return nil end
  local stop = math.min(at + 3 + number(body, at, at + 3), #body)
  at = at + 4
  -- Two fields come before it, unless somebody has an order of their own.
  for _ = 1, 16 do
    local tag, value
    tag, at = varint(body, at, stop)
    if not tag then return nil end
    local kind = tag % 8
    if kind == 0 then
      value, at = varint(body, at, stop)
      if not value or tag == 24 then return value end
    elseif kind == 2 then
      value, at = varint(body, at, stop)
      if not value then return nil end
      at = at + value
    elseif kind == 1 then at = at + 8
    elseif kind == 5 then at = at + 4
    else return nil end
  end
end

local function published(index)
  local id = string.format('%.0f-0', index + 1)
  local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
  if not entry then return 0 end
  local header, body = entry[2][2], entry[2][4]
  looked = looked + #body
  local time = said(body)
  -- Zero is no time, and beyond 2^53 numbers are not exact any more.
  if time and time > 0 and time < 9007199254740992 then return time end
  return number(header, 3, 10)
end

local first, low, high = tonumber(held[2] or '0'), tonumber(held[2] or '0'), tonumber(held[3] or '0')
while low < high do
  local middle = math.floor((low + high) / 2)
  if published(middle) < wanted then low = middle + 1 else high = middle end
end
looked = 0
local index = low
while index > first and low - index < tonumber(ARGV[3]) and looked < tonumber(ARGV[4]) do
  index = index - 1
  if published(index) >= wanted then high = index end
end
return {'done', high}
