#!lua flags=allow-oom
-- Writes what the leader decided for one subscription: assignments, evictions, drained segments. All of it or, if the
-- leader is not the leader any more, nothing.
-- KEYS: record, subscriptions, members, changes
-- ARGV: incarnation, leader, subscription, its id, generation seen, drained ('' to leave it), path, log length, op,
--   number of assignments, (consumer, assignment)..., (evicted consumer, its attachment)...
-- Returns {outcome, generation}; outcome is done, fenced, missing (the subscription, or it is another one of that name) or
-- conflict (the generation, or one who was to be evicted).
local current = redis.call('HMGET', KEYS[1], 'incarnation', 'leader')
if current[1] ~= ARGV[1] or current[2] ~= ARGV[2] then return {'fenced', ''} end
local known = redis.call('HGET', KEYS[2], ARGV[3])
-- Generations begin anew with each registration, and what an earlier one has drained says nothing of this one.
if not known or (string.match(known, '"id":"(%x*)"') or '') ~= ARGV[4] then return {'missing', ''} end
local state = redis.call('HMGET', KEYS[3], 'generation', 'op')
local generation = state[1] or '0'
if state[2] == ARGV[9] then return {'done', generation} end
if generation ~= ARGV[5] then return {'conflict', generation} end
redis.call('XLEN', KEYS[4])
local last_assigned = 10 + 2 * tonumber(ARGV[10])
for i = last_assigned + 1, #ARGV, 2 do
  -- Who has come back meanwhile was told that it keeps its segments: then nothing of this may be.
  if redis.call('HGET', KEYS[3], 'c:' .. ARGV[i]) ~= ARGV[i + 1] then return {'conflict', generation} end
end

local following = string.format('%.0f', tonumber(generation) + 1)
for i = 11, last_assigned, 2 do
  -- Who has left meanwhile is assigned nothing.
  if redis.call('HEXISTS', KEYS[3], 'c:' .. ARGV[i]) == 1 then
    redis.call('HSET', KEYS[3], 'a:' .. ARGV[i], ARGV[i + 1])
  end
end
for i = last_assigned + 1, #ARGV, 2 do redis.call('HDEL', KEYS[3], 'c:' .. ARGV[i], 'a:' .. ARGV[i]) end
redis.call('HSET', KEYS[3], 'generation', following, 'op', ARGV[9])
if ARGV[6] ~= '' then redis.call('HSET', KEYS[3], 'drained', ARGV[6]) end
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[8], '*',
  'topic', ARGV[7], 'kind', 'consumers', 'incarnation', ARGV[1], 'op', ARGV[9])
return {'done', following}
