#!lua flags=allow-oom
-- Forgets the marks of producers that have not been there for long, under the claim of the segment's owner.
-- KEYS: segment, producers. ARGV: incarnation, owner, number of the call, producer...
-- Returns done, missing, fenced or late (a call with a higher number came first).
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'owner', 'forgot')
if held[1] ~= ARGV[1] then return 'missing' end
if held[2] ~= ARGV[2] then return 'fenced' end
-- A call that was given up and comes through late must not hit a producer that came back.
local number, last = tonumber(ARGV[3]), tonumber(held[3] or '0')
if number <= last then return number == last and 'done' or 'late' end
redis.call('HLEN', KEYS[2])

redis.call('HSET', KEYS[1], 'forgot', ARGV[3])
for i = 4, #ARGV do redis.call('HDEL', KEYS[2], ARGV[i]) end
return 'done'
