#!lua
-- Registers a consumer, or a further connection of one that is known by its name, and its subscription with it.
-- KEYS: record, subscriptions, members, leaders, changes, mark, active segment...
-- ARGV: incarnation ('' for whichever it is), subscription, type, settings, consumer, attachment, the one that it
--   replaces, by its nonce ('' for whichever it is), path, log length, op, store id, most subscriptions, most consumers,
--   version of the record that has these active segments ('' if none are named), id of an active segment...
-- Returns {outcome, incarnation, leader, assignment, entry of the subscription}; outcome is done, missing, mismatch (then
-- with the type instead), stale (another connection has the consumer), lost (the mark is not that of our store), crowded
-- (no more subscriptions), full (no more consumers), unplaced (the active segments have to be named, because where they
-- end is recorded with a new subscription) or moved (the record has another version).
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
if redis.call('GET', KEYS[6]) ~= ARGV[11] then return {'lost', '', '', '', ''} end
local current = redis.call('HMGET', KEYS[1], 'incarnation', 'leader', 'epoch', 'version')
if not current[1] then return {'missing', '', '', '', ''} end
if ARGV[1] ~= '' and current[1] ~= ARGV[1] then return {'missing', '', '', '', ''} end
local known = redis.call('HGET', KEYS[2], ARGV[2])
if known then
  local type = string.match(known, '^%u+')
  if type ~= ARGV[3] and (ARGV[3] == 'CHECKPOINT' or not is_open(known)) then
    return {'mismatch', type or '', '', '', ''}
  end
elseif redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[12]) then
  return {'crowded', '', '', '', ''}
elseif ARGV[3] ~= 'CHECKPOINT' and ARGV[14] ~= current[4] then
  return {ARGV[14] == '' and 'unplaced' or 'moved', '', '', '', ''}
end
redis.call('HLEN', KEYS[4])
redis.call('XLEN', KEYS[5])
for i = 7, #KEYS do redis.call('HLEN', KEYS[i]) end
local held = redis.call('HMGET', KEYS[3], 'a:' .. ARGV[5], 'c:' .. ARGV[5])
if ARGV[7] ~= '' and held[2] and not string.find(held[2], ARGV[7], 1, true) then return {'stale', '', '', '', ''} end
if not held[2] and redis.call('HLEN', KEYS[3]) >= tonumber(ARGV[13]) then
  local consumers = 0
  for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
    if string.sub(field, 1, 2) == 'c:' then consumers = consumers + 1 end
  end
  if consumers >= tonumber(ARGV[13]) then return {'full', '', '', '', ''} end
end

if not known then
  known = ARGV[3] .. ' ' .. settings_with(current[3], ARGV[4])
  redis.call('HSET', KEYS[2], ARGV[2], known)
  for i = 7, #KEYS do
    local following = redis.call('HGET', KEYS[i], 'next')
    if following then redis.call('HSET', KEYS[3], 'e:' .. ARGV[8 + i], following) end
  end
elseif is_open(known) then
  redis.call('HSET', KEYS[2], ARGV[2], settled(known, ARGV[3]))
end
redis.call('HSET', KEYS[3], 'c:' .. ARGV[5], ARGV[6])
redis.call('HINCRBY', KEYS[1], 'activity', 1)
redis.call('HSETNX', KEYS[4], ARGV[8], '')
redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[9], '*',
  'topic', ARGV[8], 'kind', 'consumers', 'incarnation', current[1], 'op', ARGV[10])
return {'done', current[1], current[2] or '', held[1] or '', known}
