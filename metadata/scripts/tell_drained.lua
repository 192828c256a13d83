#!lua flags=allow-oom
-- Lets the leader of a scalable topic know that a partition is drained which became one of its segments: that one lies in
-- another bucket, where its owner has written the cursor.
-- KEYS: record, changes
-- ARGV: incarnation, path, log length, op
-- Returns 1 if there is such a topic.
if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[1] then return 0 end
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*',
  'topic', ARGV[2], 'kind', 'drained', 'incarnation', ARGV[1], 'op', ARGV[4])
return 1
