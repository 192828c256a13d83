#!lua flags=allow-oom
-- Deletes what is left of a segment and takes it off the list. Its storage is its incarnation's own; its state may belong to a
-- topic of the same name by now, and then it stays.
-- KEYS: garbage, segment, storage... ARGV: entry, incarnation
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if redis.call('HGET', KEYS[2], 'incarnation') == ARGV[2] then redis.call('UNLINK', KEYS[2]) end
for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
