-- Reads what was changed since a version.
--
-- KEYS: state, overrides, versions, removed.
-- ARGV: the version, and the most overrides in the reply.
--
-- The reply is: 1 if it starts from nothing, else 0; the version up to which it tells all changes; 1 if there are more,
-- else 0; the number of overrides; the sum of their versions; the
-- number that tells this store from one that it replaced, 0 if it is empty; a list of override and version for each override that was
-- set; a list of the removed IDs.
local state, overrides, versions, removed = unpack(KEYS)
local since, most = ARGV[1], tonumber(ARGV[2])

local version = redis.call('HGET', state, 'version') or '0'
local sum = redis.call('HGET', state, 'sum') or '0'
local epoch = redis.call('HGET', state, 'epoch') or '0'
local trimmed = redis.call('HGET', state, 'trimmed') or '0'
local whole = 0
if since == '0' or tonumber(version) < tonumber(since) or tonumber(since) < tonumber(trimmed) then
  since, whole = '0', 1
end
local count = redis.call('HLEN', overrides)
if since == version then return {whole, version, 0, count, sum, epoch, {}, {}} end

local after = '(' .. since
local ids = redis.call('ZRANGEBYSCORE', versions, after, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
local last, more = version, 0
if #ids == 2 * most and tonumber(ids[#ids]) < tonumber(version) then last, more = ids[#ids], 1 end
local set = {}
for i = 1, #ids, 2 do
  set[#set + 1] = redis.call('HGET', overrides, ids[i]) or ''
  set[#set + 1] = ids[i + 1]
end
local gone = {}
if whole == 0 then gone = redis.call('ZRANGEBYSCORE', removed, after, last) end
return {whole, last, more, count, sum, epoch, set, gone}
