#!lua flags=allow-oom
-- Makes a node the owner of a segment's log, if the owner is still the one that it saw, and hands the log over to it.
-- KEYS: segment, cursors, producers, ledgers; of a segment of a scalable topic also record, changes
-- ARGV: incarnation, owner seen ('' for none), session, term, bucket, segment id, path, log length, op
-- Returns {outcome, state, cursors, producers}, the last three as flat lists; outcome is done, missing or conflict.
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'owner', 'term', 'ledger', 'state')
local record = KEYS[5] and redis.call('HMGET', KEYS[5], 'incarnation', 'owner:' .. ARGV[6]) or {ARGV[1], ARGV[3]}
-- What is left of a topic that was deleted, or of a segment that was removed, waits for the garbage collector.
if held[1] ~= ARGV[1] or record[1] ~= ARGV[1] or held[5] == 'REMOVED' then return {'missing', {}, {}, {}} end
local token = ARGV[3] .. ':' .. ARGV[4]
local cursors, producers = redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3])
if held[2] ~= token then
  -- A term is never given twice: a call that was under way when the last owner left is refused by the term alone.
  if (held[2] or '') ~= ARGV[2] or tonumber(held[3] or '0') >= tonumber(ARGV[4]) then
    return {'conflict', {}, {}, {}}
  end
  local last = tonumber(redis.call('GET', KEYS[4]) or '0')
  if KEYS[6] then redis.call('XLEN', KEYS[6]) end

  if not held[4] then
    -- The clock lets ledgers grow even where the store has lost its last second.
    local time = redis.call('TIME')
    local number = math.max(last + 1, time[1] * 1000 + math.floor(time[2] / 1000))
    redis.call('SET', KEYS[4], string.format('%.0f', number))
    redis.call('HSET', KEYS[1], 'ledger', string.format('%.0f', number * 128 + tonumber(ARGV[5])))
  end
  redis.call('HSET', KEYS[1], 'owner', token, 'term', ARGV[4])
  -- Each owner counts its calls by itself.
  redis.call('HDEL', KEYS[1], 'saved', 'forgot')
  -- Its figures go on if it is the same node that claims anew.
  if string.sub(held[2] or '', 1, #ARGV[3] + 1) ~= ARGV[3] .. ':' then redis.call('HDEL', KEYS[1], 'figures') end
  if record[2] ~= ARGV[3] then
    redis.call('HSET', KEYS[5], 'owner:' .. ARGV[6], ARGV[3])
    redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[8], '*',
      'topic', ARGV[7], 'kind', 'owner', 'incarnation', ARGV[1], 'op', ARGV[9])
  end
end
return {'done', redis.call('HGETALL', KEYS[1]), cursors, producers}
