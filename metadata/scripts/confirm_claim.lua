#!lua flags=allow-oom
-- Writes what stands there already, under the claim of a segment's owner: a replica that has this has all before it.
-- KEYS: segment. ARGV: incarnation, owner. Returns done, missing or fenced.
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'owner')
if held[1] ~= ARGV[1] then return 'missing' end
if held[2] ~= ARGV[2] then return 'fenced' end
redis.call('HSET', KEYS[1], 'owner', ARGV[2])
return 'done'
