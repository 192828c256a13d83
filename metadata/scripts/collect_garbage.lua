#!lua flags=allow-oom
-- Deletes what is left of a segment, unless a topic of the same name has taken its place, and takes it off the list.
-- KEYS: garbage, segment. ARGV: entry, incarnation
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if redis.call('HGET', KEYS[2], 'incarnation') == ARGV[2] then redis.call('UNLINK', KEYS[2]) end
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
