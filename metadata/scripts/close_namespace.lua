#!lua flags=allow-oom
-- Closes one bucket of a namespace to new topics; a script, because a plain write is refused by a full store.
-- KEYS: closed
redis.call('SET', KEYS[1], '1')
return 'done'
