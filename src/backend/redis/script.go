package redis

import (
	"crypto/sha1" //nolint:gosec // the name Redis gives scripts, not a secret
	"encoding/hex"
)

// groupScript charges a group of hits that stand or fall together, and single
// hits that a command alone cannot express: refunds, which stop at zero, and
// charges that do not count when they are refused. It is memory.takeGroup in
// Lua; numbers are doubles there, exact up to 2^53.
//
// KEYS: one for each hit, in order; a key may be there twice. ARGV, five for
// each hit: the operation (c, l, r, f), amount, limit, flags (1 counts refused
// hits, 2 atomic, 4 no veto), seconds to live. It returns 1 if the group was
// refused, else 0, then for each hit the count before it and 1 if it is over.
const groupScript = `
local function count(key) return tonumber(redis.call('GET', key) or 0) end
local n, tried, over, vetoed = #KEYS, {}, {}, 0
for i = 1, n do
  local key, a = KEYS[i], 5 * (i - 1)
  local op, amount, max, flags = ARGV[a+1], tonumber(ARGV[a+2]), tonumber(ARGV[a+3]), tonumber(ARGV[a+4])
  local now = tried[key] or count(key)
  over[i] = 0
  if op == 'r' then
    now = math.max(now - amount, 0)
  elseif op == 'f' then
    now = now + amount
  else
    if now + amount > max then
      over[i] = 1
      if flags < 4 then vetoed = 1 end
    end
    if op == 'c' and (over[i] == 0 or flags % 2 == 1) then now = now + amount end
  end
  tried[key] = now
end
local result = {vetoed}
for i = 1, n do
  local key, a = KEYS[i], 5 * (i - 1)
  local op, amount, max, flags = ARGV[a+1], tonumber(ARGV[a+2]), tonumber(ARGV[a+3]), tonumber(ARGV[a+4])
  local now = count(key)
  if vetoed == 0 or flags % 4 < 2 then
    over[i] = 0
    if op == 'r' then
      local back = math.min(now, amount)
      if back > 0 then redis.call('DECRBY', key, string.format('%.0f', back)) end
    else
      if op ~= 'f' and now + amount > max then over[i] = 1 end
      if amount > 0 and (op == 'f' or op == 'c' and (over[i] == 0 or flags % 2 == 1)) then
        if redis.call('INCRBY', key, ARGV[a+2]) == amount then redis.call('EXPIRE', key, ARGV[a+5]) end
      end
    end
  end
  result[2*i] = now
  result[2*i+1] = over[i]
end
return result
`

// groupSHA is the name under which Redis knows groupScript once it has seen it.
var groupSHA = func() string {
	sum := sha1.Sum([]byte(groupScript))
	return hex.EncodeToString(sum[:])
}()
