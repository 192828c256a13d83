#!lua
-- Adds a namespace; its value is the 16 characters of the operation id, a blank, and the policies.
-- KEYS: namespaces. ARGV: op, name, policies. Returns done or exists.
local current = redis.call('HGET', KEYS[1], ARGV[2])
if current then
  return string.sub(current, 1, 16) == ARGV[1] and 'done' or 'exists'
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[1] .. ' ' .. ARGV[3])
return 'done'
