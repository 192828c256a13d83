#!lua flags=allow-oom
-- Replaces a topic's record: a whole transition (children created, parents sealed, layout written) or nothing.
-- KEYS: record, changes, segments created..., segments sealed..., segments removed..., leaders if any is sealed, garbage if
--   any is removed.
--   No key that is not needed: while a slot moves, a script that names one that does not exist has to wait.
-- ARGV: op, incarnation, version, value, path, log length, leader ('' for a write that needs none), number created,
--   number sealed, activity ('' for whichever it is), epoch ('' where the value has none),
--   descriptors removed...
-- Returns {outcome, incarnation, version}; outcome is done, missing, conflict or fenced.
local op, incarnation = ARGV[1], ARGV[2]
local current = redis.call('HMGET', KEYS[1], 'op', 'incarnation', 'version', 'leader', 'activity')
if not current[2] then return {'missing', '', ''} end
if current[1] == op then return {'done', current[2], current[3]} end
if ARGV[7] ~= '' and (current[2] ~= incarnation or current[4] ~= ARGV[7]) then
  return {'fenced', current[2], current[3]}
end
if current[2] ~= incarnation or current[3] ~= ARGV[3] or (ARGV[10] ~= '' and (current[5] or '0') ~= ARGV[10]) then
  return {'conflict', current[2], current[3]}
end
redis.call('XLEN', KEYS[2])
for i = 3, #KEYS do redis.call('HLEN', KEYS[i]) end

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local version = string.format('%.0f', tonumber(ARGV[3]) + 1)
local last_created = 2 + tonumber(ARGV[8])
local last_sealed = last_created + tonumber(ARGV[9])
for i = 3, last_sealed do
  if i <= last_created then
    redis.call('DEL', KEYS[i])
    redis.call('HSET', KEYS[i], 'state', 'ACTIVE', 'incarnation', incarnation)
  else
    redis.call('HSET', KEYS[i], 'state', 'SEALED')
  end
end
-- The storage of a removed segment is deleted from the garbage list, in slices. Until then nobody shall claim it.
local removed = #ARGV - 11
for i = 1, removed do
  local key, descriptor = KEYS[last_sealed + i], ARGV[11 + i]
  if redis.call('HGET', key, 'incarnation') == incarnation then redis.call('HSET', key, 'state', 'REMOVED') end
  redis.call('HDEL', KEYS[1], 'owner:' .. (string.match(descriptor, '%d+$') or ''))
  redis.call('HSET', KEYS[#KEYS], incarnation .. '/' .. ARGV[5] .. '/' .. descriptor, now)
end
-- A sealed segment has to be pruned one day, for which the topic needs a leader.
if last_sealed > last_created then
  redis.call('HSETNX', KEYS[last_sealed + removed + 1], ARGV[5], '')
  redis.call('HINCRBY', KEYS[1], 'activity', 1)
end
redis.call('HSET', KEYS[1], 'value', ARGV[4], 'version', version, 'mtime', now, 'op', op, 'epoch', ARGV[11])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[6], '*',
  'topic', ARGV[5], 'kind', 'changed', 'incarnation', incarnation, 'version', version, 'op', op,
  'epoch', ARGV[11], 'size', #ARGV[4])
return {'done', incarnation, version}
