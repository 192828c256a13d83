#!lua flags=allow-oom
-- Notes the epoch of the last exclusive producer of a segment, which only grows, under the claim of its owner.
-- KEYS: segment. ARGV: incarnation, owner, epoch. Returns done, missing or fenced.
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'owner', 'epoch')
if held[1] ~= ARGV[1] then return 'missing' end
if held[2] ~= ARGV[2] then return 'fenced' end
if not held[3] or tonumber(held[3]) < tonumber(ARGV[3]) then redis.call('HSET', KEYS[1], 'epoch', ARGV[3]) end
return 'done'
