#!lua flags=allow-oom
-- Forgets a subscription with its consumers. KEYS: record, subscriptions, members, changes
-- ARGV: subscription, force ('1'), path, log length, op, sessions of nodes that are gone...
-- Returns done, missing (the topic), unknown (the subscription), busy (it has connected consumers) or group (so has this
-- one of CHECKPOINT readers, who would only register again).
local incarnation = redis.call('HGET', KEYS[1], 'incarnation')
if not incarnation then return 'missing' end
local known = redis.call('HGET', KEYS[2], ARGV[1])
if not known then return 'unknown' end
local group = string.match(known, '^%u+') == 'CHECKPOINT'
if group or ARGV[2] ~= '1' then
  local gone = {['']=true}
  for i = 6, #ARGV do gone[ARGV[i]] = true end
  local members = redis.call('HGETALL', KEYS[3])
  for i = 1, #members, 2 do
    if string.sub(members[i], 1, 2) == 'c:' and not gone[string.match(members[i + 1], '"node":"(%x*)"') or ''] then
      return group and 'group' or 'busy'
    end
  end
end
redis.call('XLEN', KEYS[4])

redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('UNLINK', KEYS[3])
redis.call('HINCRBY', KEYS[1], 'activity', 1)
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[4], '*',
  'topic', ARGV[3], 'kind', 'consumers', 'incarnation', incarnation, 'op', ARGV[5])
return 'done'
