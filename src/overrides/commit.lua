-- Sets and removes overrides, each by its ID.
--
-- KEYS: state, overrides, versions, removed, ends, history.
-- ARGV: the step of versions, the time in ms, the most overrides, the most records, the modulus of the sum, a random
-- number that tells a new store from one that it replaces, the greatest version that the sender knows, and for each edit
-- its action (set, unset or restore), ID, override, end in ms (0 for none), record (empty for none) and the version that
-- the sender knows (0 for none).
--
-- A store whose version is less than a known one has lost changes. It gets a new number, and greater versions.
--
-- The reply is a list with the number that tells this store from one that it replaces, and with the old override and
-- the new version of each edit: an empty text and 0 for none. It is "too many", and nothing is changed, if there would
-- be too many overrides.
local state, overrides, versions, removed, ends, history = unpack(KEYS)
local step, now, most, records, modulus = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local known = tonumber(ARGV[7])
local first, per_edit = 8, 6
local kept_removed, ended_at_once = 10000, 100

local version = tonumber(redis.call('HGET', state, 'version') or '0')
local sum = tonumber(redis.call('HGET', state, 'sum') or '0')

if known > version then
  version = known
  redis.call('HSET', state, 'epoch', ARGV[6])
end

local function text(number) return string.format('%.0f', number) end

local function forget_version(id)
  local old = redis.call('ZSCORE', versions, id)
  if old then sum = (sum - tonumber(old)) % modulus end
end

local function remove(id)
  forget_version(id)
  version = version + step
  redis.call('HDEL', overrides, id)
  redis.call('ZREM', versions, id)
  redis.call('ZREM', ends, id)
  redis.call('ZADD', removed, text(version), id)
end

local function set(id, override, until_ms)
  forget_version(id)
  version = version + step
  sum = (sum + version) % modulus
  redis.call('HSET', overrides, id, override)
  redis.call('ZADD', versions, text(version), id)
  redis.call('ZREM', removed, id)
  if until_ms == '0' then
    redis.call('ZREM', ends, id)
  else
    redis.call('ZADD', ends, until_ms, id)
  end
end

local function is_removed_since(id, known_version)
  local at = redis.call('ZSCORE', removed, id)
  return at and tonumber(at) > known_version
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, ended_at_once)) do
  remove(id)
end

local count, added = redis.call('HLEN', overrides), 0
for i = first, #ARGV, per_edit do
  if ARGV[i] ~= 'unset' and redis.call('HEXISTS', overrides, ARGV[i + 1]) == 0 then added = added + 1 end
end

redis.call('HSETNX', state, 'epoch', ARGV[6])
local reply = {redis.call('HGET', state, 'epoch')}
if added > 0 and count + added > most then
  reply = 'too many'
else
  for i = first, #ARGV, per_edit do
    local action, id, override, until_ms, record = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
    local old = redis.call('HGET', overrides, id) or ''
    local new_version, is_changed = 0, true
    if action == 'unset' then
      is_changed = old ~= ''
      remove(id) -- A replica may be about to restore what the store has lost.
    elseif action == 'restore' and (old ~= '' or is_removed_since(id, tonumber(ARGV[i + 5]))) then
      is_changed = false
    else
      set(id, override, until_ms)
      new_version = version
    end
    if is_changed and record ~= '' then
      redis.call('LPUSH', history, record .. '\n' .. old)
    end
    reply[#reply + 1] = old
    reply[#reply + 1] = text(new_version)
  end
  redis.call('LTRIM', history, 0, records - 1)
end

-- Replicas that have not read for long read everything.
local excess = redis.call('ZCARD', removed) - kept_removed
if excess > 0 then
  local last = redis.call('ZRANGE', removed, excess - 1, excess - 1, 'WITHSCORES')
  redis.call('HSET', state, 'trimmed', last[2])
  redis.call('ZREMRANGEBYRANK', removed, 0, excess - 1)
end
redis.call('HSET', state, 'version', text(version), 'sum', text(sum))
return reply
