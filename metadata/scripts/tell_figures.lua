#!lua flags=allow-oom
-- Tells what goes through a segment's log and who is at it, under the claim of its owner.
-- KEYS: segment. ARGV: incarnation, owner, how long the rates hold in milliseconds, figures ('' for none).
-- Returns done, missing or fenced.
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'owner')
if held[1] ~= ARGV[1] then return 'missing' end
if held[2] ~= ARGV[2] then return 'fenced' end
if ARGV[4] == '' then
  redis.call('HDEL', KEYS[1], 'figures')
else
  -- By this clock, because readers ask for it too: those of the nodes may differ.
  local time = redis.call('TIME')
  local ends = time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[3])
  redis.call('HSET', KEYS[1], 'figures', string.format('%.0f ', ends) .. ARGV[4])
end
return 'done'
