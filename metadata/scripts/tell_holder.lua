#!lua flags=allow-oom
-- Tells which consumer has a segment for a subscription that gives it to one at a time, under the claim of its owner.
-- KEYS: segment. ARGV: incarnation, owner, session, subscription, consumer ('' for none).
-- Returns done, missing or fenced.
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'owner')
if held[1] ~= ARGV[1] then return 'missing' end
if held[2] ~= ARGV[2] then return 'fenced' end
if ARGV[5] == '' then
  redis.call('HDEL', KEYS[1], 'holder:' .. ARGV[4])
else
  -- With the session, because what an owner that died has told says nothing of the next one.
  redis.call('HSET', KEYS[1], 'holder:' .. ARGV[4], ARGV[3] .. ' ' .. ARGV[5])
end
return 'done'
