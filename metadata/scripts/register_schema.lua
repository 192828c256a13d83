#!lua
-- Adds a version to the schemas of a topic, unless one with this content is there; so it does no harm twice.
-- KEYS: the hash with the topic's incarnation, schemas
-- ARGV: incarnation, digest of the content, entry, number that the new version must get, most versions, most bytes
-- Returns {outcome, version}; outcome is done, missing (the topic), conflict (another version was added or all were
-- deleted meanwhile) or full.
if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[1] then return {'missing', ''} end
local digest = 'd:' .. ARGV[2]
local stored = redis.call('HMGET', KEYS[2], 'first', 'next', 'size', digest)
local first, number, size = tonumber(stored[1] or 0), tonumber(stored[2] or 0), tonumber(stored[3] or 0)
if stored[4] and tonumber(stored[4]) >= first then return {'done', stored[4]} end
if number ~= tonumber(ARGV[4]) then return {'conflict', ''} end
size = size + #ARGV[3]
if number >= tonumber(ARGV[5]) or size > tonumber(ARGV[6]) then return {'full', ''} end

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[2], 'v:' .. number, now .. ' ' .. ARGV[3], digest, number,
  'first', first, 'next', number + 1, 'size', size)
return {'done', tostring(number)}
