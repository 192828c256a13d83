#!lua
-- Creates a classic log: a topic of its own, or one partition. State, index entry and change log entry, or nothing.
-- With it come the subscriptions that a partition has from its beginning on.
-- KEYS: classic, index, changes, mark, closed, record, partitioned, cursors
-- ARGV: op, incarnation, index field, path, log length, store id, properties, cursor of those subscriptions, subscription...
-- Returns {outcome, incarnation, version}; outcome is done, exists, scalable or partitioned (the name is taken by a topic
-- of that kind), closed (the namespace is being deleted) or lost (the mark is not that of our store).
local op, incarnation = ARGV[1], ARGV[2]
local current = redis.call('HMGET', KEYS[1], 'op', 'incarnation')
if current[2] then return {current[1] == op and 'done' or 'exists', current[2], '0'} end
if redis.call('EXISTS', KEYS[6]) == 1 then return {'scalable', '', ''} end
if redis.call('EXISTS', KEYS[7]) == 1 then return {'partitioned', '', ''} end
if redis.call('GET', KEYS[4]) ~= ARGV[6] then return {'lost', '', ''} end
if redis.call('EXISTS', KEYS[5]) == 1 then return {'closed', '', ''} end
redis.call('HLEN', KEYS[2])
redis.call('XLEN', KEYS[3])
redis.call('HLEN', KEYS[8])

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[1], 'state', 'ACTIVE', 'incarnation', incarnation, 'ctime', now, 'op', op,
  'properties', ARGV[7])
for i = 9, #ARGV do redis.call('HSETNX', KEYS[8], ARGV[i], ARGV[8]) end
redis.call('HSET', KEYS[2], ARGV[3], incarnation)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*',
  'topic', ARGV[4], 'kind', 'classic', 'incarnation', incarnation, 'op', op)
return {'done', incarnation, '0'}
