#!lua flags=allow-oom
-- Ends a node's session if it is still ours. KEYS: node. ARGV: value. Returns 1 or 0.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
