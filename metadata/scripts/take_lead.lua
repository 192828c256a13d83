#!lua flags=allow-oom
-- Makes a node the leader of a topic, if the leader is still the one that it saw.
-- KEYS: record, leaders, changes
-- ARGV: incarnation, leader seen ('' for none), new leader, session, path, log length, op
-- Returns {outcome, leader}; outcome is done, missing or conflict.
local current = redis.call('HMGET', KEYS[1], 'incarnation', 'leader')
if not current[1] then return {'missing', ''} end
local leader = current[2] or ''
if current[1] ~= ARGV[1] then return {'missing', ''} end
if leader == ARGV[3] then return {'done', leader} end
if leader ~= ARGV[2] then return {'conflict', leader} end
redis.call('HLEN', KEYS[2])
redis.call('XLEN', KEYS[3])

redis.call('HSET', KEYS[1], 'leader', ARGV[3])
redis.call('HSET', KEYS[2], ARGV[5], ARGV[4])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*',
  'topic', ARGV[5], 'kind', 'controller', 'incarnation', ARGV[1], 'op', ARGV[7])
return {'done', ARGV[3]}
