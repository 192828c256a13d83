#!lua flags=allow-oom
-- Writes where subscriptions stand in a segment's log, under the claim of its owner.
-- KEYS: segment, cursors, changes if the segment is drained by this
-- ARGV: incarnation, owner, number of the call, path, log length, op, number of cursors to delete, number of requests that
--   these cursors carry out, subscription to delete..., (subscription, request)..., (subscription, cursor)...
-- Returns done, missing, fenced or late (a call with a higher number came first).
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'owner', 'saved')
if held[1] ~= ARGV[1] then return 'missing' end
if held[2] ~= ARGV[2] then return 'fenced' end
-- A call that was given up and comes through late must not take acknowledgements back.
local number, last = tonumber(ARGV[3]), tonumber(held[3] or '0')
if number <= last then return number == last and 'done' or 'late' end
redis.call('HLEN', KEYS[2])
if KEYS[3] then redis.call('XLEN', KEYS[3]) end

local deleted = 8 + tonumber(ARGV[7])
local requests = deleted + 2 * tonumber(ARGV[8])
redis.call('HSET', KEYS[1], 'saved', ARGV[3])
for i = 9, deleted do
  redis.call('HDEL', KEYS[2], ARGV[i])
  -- Who had it at an owner that died, nobody else takes back; who has it here is told by this owner.
  local field = 'holder:' .. ARGV[i]
  local told = redis.call('HGET', KEYS[1], field)
  if told and string.match(told, '^[^ ]*') ~= string.match(held[2], '^[^:]*') then redis.call('HDEL', KEYS[1], field) end
end
for i = deleted + 1, requests, 2 do
  -- One that has come since is still to be carried out.
  local field = 'request:' .. ARGV[i]
  if redis.call('HGET', KEYS[1], field) == ARGV[i + 1] then redis.call('HDEL', KEYS[1], field) end
end
for i = requests + 1, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
if KEYS[3] then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*',
    'topic', ARGV[4], 'kind', 'drained', 'incarnation', ARGV[1], 'op', ARGV[6])
end
return 'done'
