#!lua flags=allow-oom
-- Forgets a subscription with its consumers, whoever is connected. Its cursors count for nobody from then on.
-- KEYS: record, subscriptions, members, changes, deleted
-- ARGV: subscription, path, log length, op, how many deleted ones are remembered, sessions of nodes that are gone...
-- Returns done, missing (the topic), unknown (the subscription) or group (one of CHECKPOINT readers who are connected, and
-- would only register again).
local incarnation = redis.call('HGET', KEYS[1], 'incarnation')
if not incarnation then return 'missing' end
local known = redis.call('HGET', KEYS[2], ARGV[1])
if not known then return 'unknown' end
if string.match(known, '^%u+') == 'CHECKPOINT' then
  local gone = {['']=true}
  for i = 6, #ARGV do gone[ARGV[i]] = true end
  local members = redis.call('HGETALL', KEYS[3])
  for i = 1, #members, 2 do
    if string.sub(members[i], 1, 2) == 'c:' and not gone[string.match(members[i + 1], '"node":"(%x*)"') or ''] then
      return 'group'
    end
  end
end
redis.call('XLEN', KEYS[4])
redis.call('LLEN', KEYS[5])

redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('UNLINK', KEYS[3])
-- Owners of logs tell by it what was deleted from what the store has lost.
redis.call('LPUSH', KEYS[5], (string.match(known, '"id":"(%x*)"') or '') .. ' ' .. ARGV[1])
redis.call('LTRIM', KEYS[5], 0, ARGV[5] - 1)
redis.call('HINCRBY', KEYS[1], 'activity', 1)
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[3], '*',
  'topic', ARGV[2], 'kind', 'consumers', 'incarnation', incarnation, 'op', ARGV[4])
return 'done'
