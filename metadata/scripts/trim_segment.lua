#!lua flags=allow-oom
-- Removes entries from the beginning of a segment's log, as many as one call may, under the claim of its owner.
-- KEYS: segment, log. ARGV: incarnation, owner, index to keep from, size of the log after all of it, most entries
-- Returns {outcome, first index that is left, whether that is all}; outcome is done, missing or fenced.
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'owner', 'first', 'next')
if held[1] ~= ARGV[1] then return {'missing', 0, 0} end
if held[2] ~= ARGV[2] then return {'fenced', 0, 0} end
local first = tonumber(held[3] or '0')
local wanted = math.min(tonumber(ARGV[3]), tonumber(held[4] or '0'))
local kept = math.min(wanted, first + tonumber(ARGV[5]))
if kept <= first then return {'done', first, 1} end

redis.call('XTRIM', KEYS[2], 'MINID', '=', string.format('%.0f-0', kept + 1))
redis.call('HSET', KEYS[1], 'first', string.format('%.0f', kept))
if kept == wanted then redis.call('HSET', KEYS[1], 'size', ARGV[4]) end
return {'done', kept, kept == wanted and 1 or 0}
