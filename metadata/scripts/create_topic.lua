#!lua
-- Creates a topic: record, index entry, segment states and change log entry, or nothing.
-- KEYS: record, index, changes, mark, closed, classic, partitioned, segment...
-- ARGV: op, incarnation, value, index field, path, log length, store id, epoch ('' where the value has none)
-- Returns {outcome, incarnation, version}; outcome is done, exists, classic (the name is taken by a classic topic), closed
-- (the namespace is being deleted) or lost (the mark is not that of our store).
local op, incarnation = ARGV[1], ARGV[2]
local current = redis.call('HMGET', KEYS[1], 'op', 'incarnation', 'version')
if current[2] then
  return {current[1] == op and 'done' or 'exists', current[2], current[3]}
end
if redis.call('GET', KEYS[4]) ~= ARGV[7] then return {'lost', '', ''} end
if redis.call('EXISTS', KEYS[5]) == 1 then return {'closed', '', ''} end
-- What a deleted topic had been migrated from waits to be collected, and is in nobody's way.
for i = 6, 7 do
  if redis.call('EXISTS', KEYS[i]) == 1 and redis.call('HEXISTS', KEYS[i], 'migrated') == 0 then
    return {'classic', '', ''}
  end
end
-- A key of another type would fail a write in the middle, and nothing is rolled back.
redis.call('HLEN', KEYS[2])
redis.call('XLEN', KEYS[3])
for i = 8, #KEYS do redis.call('HLEN', KEYS[i]) end

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[1], 'value', ARGV[3], 'incarnation', incarnation, 'version', '0',
  'ctime', now, 'mtime', now, 'op', op, 'epoch', ARGV[8])
for i = 8, #KEYS do
  redis.call('DEL', KEYS[i])
  redis.call('HSET', KEYS[i], 'state', 'ACTIVE', 'incarnation', incarnation)
end
redis.call('HSET', KEYS[2], ARGV[4], incarnation)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*',
  'topic', ARGV[5], 'kind', 'created', 'incarnation', incarnation, 'version', '0', 'op', op,
  'epoch', ARGV[8], 'size', #ARGV[3])
return {'done', incarnation, '0'}
