#!lua
-- Records a subscription, and where it begins. KEYS: record, subscriptions, changes, members, active segment...
-- ARGV: subscription, type, settings, path, log length, op, most subscriptions, '1' if one of any type will do, initial
--   position ('' if that is not known yet), segment that is asked about ('' for none), version of the record that has these
--   active segments ('' if none are named), id of an active segment...
-- Returns {outcome, type, entry, position, end}; outcome is done, missing (the topic), mismatch, crowded (no more
-- subscriptions), unplaced (the active segments have to be named) or moved (the record has another version). The rest is
-- what stands there after it, and where the segment that was asked about ended when the subscription was recorded.
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
-- Whoever says first where it begins decides that for all segments. Registrations without an id are older than that.
local function begin(entry)
  if ARGV[9] ~= '' and string.find(entry, '"id":"', 1, true) then
    redis.call('HSETNX', KEYS[4], 'position', ARGV[9])
  end
  local found = redis.call('HMGET', KEYS[4], 'position', 'e:' .. ARGV[10])
  return found[1] or '', found[2] or ''
end
local incarnation, epoch, version = unpack(redis.call('HMGET', KEYS[1], 'incarnation', 'epoch', 'version'))
if not incarnation then return {'missing', '', '', '', ''} end
redis.call('HLEN', KEYS[4])
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known then
  if ARGV[8] == '1' then return {'done', '', known, begin(known)} end
  if is_open(known) then
    known = settled(known, ARGV[2])
    redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*',
      'topic', ARGV[4], 'kind', 'consumers', 'incarnation', incarnation, 'op', ARGV[6])
    redis.call('HSET', KEYS[2], ARGV[1], known)
  end
  local type = string.match(known, '^%u+') or ''
  if type ~= ARGV[2] then return {'mismatch', type, known, '', ''} end
  return {'done', type, known, begin(known)}
end
if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[7]) then return {'crowded', '', '', '', ''} end
if ARGV[9] ~= 'earliest' and ARGV[11] ~= version then return {ARGV[11] == '' and 'unplaced' or 'moved', '', '', '', ''} end
redis.call('XLEN', KEYS[3])
for i = 5, #KEYS do redis.call('HLEN', KEYS[i]) end

local entry = ARGV[2] .. ' ' .. settings_with(epoch, ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], entry)
for i = 5, #KEYS do
  local following = redis.call('HGET', KEYS[i], 'next')
  if following then redis.call('HSET', KEYS[4], 'e:' .. ARGV[7 + i], following) end
end
redis.call('HINCRBY', KEYS[1], 'activity', 1)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*',
  'topic', ARGV[4], 'kind', 'consumers', 'incarnation', incarnation, 'op', ARGV[6])
return {'done', ARGV[2], entry, begin(entry)}
