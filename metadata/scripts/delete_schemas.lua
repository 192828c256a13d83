#!lua flags=allow-oom
-- Deletes the schemas of a topic. They count no more, and can still be read by their numbers unless they are purged; the
-- deletion takes a number of its own, so that none is ever given twice.
-- KEYS: the hash with the topic's incarnation, schemas. ARGV: op, incarnation, purge ('1')
-- Returns {outcome, version}; outcome is done, missing (the topic) or none (there was nothing to delete).
if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[2] then return {'missing', ''} end
local stored = redis.call('HMGET', KEYS[2], 'first', 'next', 'op')
local first, number = tonumber(stored[1] or 0), tonumber(stored[2] or 0)
if stored[3] == ARGV[1] then return {'done', tostring(first - 1)} end
if ARGV[3] == '1' and number > 0 then
  redis.call('UNLINK', KEYS[2])
  redis.call('HSET', KEYS[2], 'purged', number + 1)
elseif first == number then
  return {'none', ''}
end

redis.call('HSET', KEYS[2], 'first', number + 1, 'next', number + 1, 'op', ARGV[1])
return {'done', tostring(number)}
