#!lua flags=allow-oom
-- Takes or prolongs a node's session. KEYS: node. ARGV: value, milliseconds, first ("1" for the first time).
-- Returns 1 while the session is ours, 0 once it ran out: it is never taken up again.
local current = redis.call('GET', KEYS[1])
if current == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
if current or ARGV[3] ~= '1' then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
