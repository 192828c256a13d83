#!lua flags=allow-oom
-- Replaces the policies of a namespace if they are still the expected ones.
-- KEYS: namespaces. ARGV: op, name, expected policies, new policies. Returns done, missing or conflict.
local current = redis.call('HGET', KEYS[1], ARGV[2])
if not current then return 'missing' end
if string.sub(current, 1, 16) == ARGV[1] then return 'done' end
if string.sub(current, 18) ~= ARGV[3] then return 'conflict' end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[1] .. ' ' .. ARGV[4])
return 'done'
