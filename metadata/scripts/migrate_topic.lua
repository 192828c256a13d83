#!lua flags=allow-oom
-- Makes a classic topic a scalable one with the same incarnation: its record with its first segments and the subscriptions
-- that it has, and the classic topic is marked as migrated; or nothing happens. A single log is sealed by that, partitions
-- have been before.
-- KEYS: record, index, changes, mark, closed, leaders, subscriptions, classic or partitioned, cursors of a single log,
--   segment...
-- ARGV: op, incarnation, version that the record begins with, value, index field, path, log length, store id, epoch, version
--   of the partitioned topic ('' for a single log), entry of each subscription, subscription that partitions have...
-- Returns {outcome, incarnation, version}; outcome is done, exists, missing, conflict (the classic topic is another one, or
-- not ready), closed (the namespace is being deleted) or lost (the mark is not that of our store).
local op, incarnation, version = ARGV[1], ARGV[2], ARGV[3]
local current = redis.call('HMGET', KEYS[1], 'op', 'incarnation', 'version')
if current[2] then return {current[1] == op and 'done' or 'exists', current[2], current[3]} end
if redis.call('GET', KEYS[4]) ~= ARGV[8] then return {'lost', '', ''} end
if redis.call('EXISTS', KEYS[5]) == 1 then return {'closed', '', ''} end
local partitioned = ARGV[10] ~= ''
local classic = redis.call('HMGET', KEYS[8], 'incarnation', 'state', 'version', 'migrated')
-- One that has been migrated, without a record, is what a deleted topic has left.
if not classic[1] or classic[4] then return {'missing', '', ''} end
if classic[1] ~= incarnation then return {'conflict', classic[1], ''} end
if partitioned and (classic[2] ~= 'MIGRATING' or classic[3] ~= ARGV[10]) then return {'conflict', classic[1], ''} end
redis.call('HLEN', KEYS[2])
redis.call('XLEN', KEYS[3])
redis.call('HLEN', KEYS[6])
redis.call('HLEN', KEYS[7])
for i = 10, #KEYS do redis.call('HLEN', KEYS[i]) end
-- Those of a single log as they are now: whoever comes later finds it sealed, and registers at the topic.
local subscriptions = redis.call('HKEYS', KEYS[9])
for i = 12, #ARGV do subscriptions[#subscriptions + 1] = ARGV[i] end

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[8], 'state', partitioned and 'MIGRATED' or 'SEALED', 'migrated', '1')
redis.call('HSET', KEYS[1], 'value', ARGV[4], 'incarnation', incarnation, 'version', version,
  'ctime', now, 'mtime', now, 'op', op, 'epoch', ARGV[9], 'activity', '1')
for i = 10, #KEYS do
  redis.call('DEL', KEYS[i])
  redis.call('HSET', KEYS[i], 'state', 'ACTIVE', 'incarnation', incarnation)
end
redis.call('HSET', KEYS[2], ARGV[5], incarnation)
-- The old logs have to be pruned one day, for which the topic needs a leader.
redis.call('HSETNX', KEYS[6], ARGV[6], '')
for _, subscription in ipairs(subscriptions) do redis.call('HSET', KEYS[7], subscription, ARGV[11]) end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[7], '*',
  'topic', ARGV[6], 'kind', 'classic', 'incarnation', incarnation, 'op', op)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[7], '*',
  'topic', ARGV[6], 'kind', 'created', 'incarnation', incarnation, 'version', version, 'op', op,
  'epoch', ARGV[9], 'size', #ARGV[4])
return {'done', incarnation, version}
