#!lua
-- Records a subscription. KEYS: record, subscriptions, changes
-- ARGV: subscription, type, settings, path, log length, op, most subscriptions, '1' if one of any type will do
-- Returns {outcome, type, entry}; outcome is done, missing (the topic), mismatch or crowded (no more subscriptions), and
-- entry what stands there after it.
-- One that a migrated topic brought along, that a producer asked for or that was created without a type gets the type
-- that it is used with first.
local function is_open(entry) return string.find(entry, '"migrated":true', 1, true) end
local function settled(entry, type)
  return (string.gsub(string.gsub(entry, '^%u+', type), ',?"migrated":true', '', 1))
end
-- The epoch of the layout goes with it: segments that are made later begin with all their messages unread.
local function settings_with(epoch, settings)
  if not epoch or epoch == '' then return settings end
  local rest = string.sub(settings, 2)
  return '{"createdAtEpoch":' .. epoch .. (rest == '}' and '' or ',') .. rest
end
local incarnation, epoch = unpack(redis.call('HMGET', KEYS[1], 'incarnation', 'epoch'))
if not incarnation then return {'missing', '', ''} end
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known then
  if ARGV[8] == '1' then return {'done', '', known} end
  if is_open(known) then
    known = settled(known, ARGV[2])
    redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*',
      'topic', ARGV[4], 'kind', 'consumers', 'incarnation', incarnation, 'op', ARGV[6])
    redis.call('HSET', KEYS[2], ARGV[1], known)
  end
  local type = string.match(known, '^%u+') or ''
  return {type == ARGV[2] and 'done' or 'mismatch', type, known}
end
if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[7]) then return {'crowded', '', ''} end
redis.call('XLEN', KEYS[3])

local entry = ARGV[2] .. ' ' .. settings_with(epoch, ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], entry)
redis.call('HINCRBY', KEYS[1], 'activity', 1)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*',
  'topic', ARGV[4], 'kind', 'consumers', 'incarnation', incarnation, 'op', ARGV[6])
return {'done', ARGV[2], entry}
