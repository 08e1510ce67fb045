-- Joined with window.lua, sliding.lua, gcra.lua, holds.lua and take.lua to one script, see script.go.
--
-- A counter's algorithm is a table of functions:
--   look(h)        returns the counter's state before the hit h, and writes nothing
--   judge(s, h)    returns whether h is over its limit, and what it adds to the counter: a negative number takes units
--                  away, 0 writes nothing, nil writes the state as look returned it
--   write(s, h, add, ...)  writes the state s with add units more; what judge returned behind add follows
--   after(s, h)    adds to s what the verdict needs of the state behind the hit; only some have it
-- The numbers s[1] to s[5] go into the reply. counterState in verdict.go reads them.
--
-- Times are whole µs, which doubles hold exactly until the year 2255.
local call, floor, max, min = redis.call, math.floor, math.max, math.min
local missing = -1 -- in place of an instant that is not known
local century = 3153600000000000 -- µs
local max_count = 4503599627370496 -- where counts stop growing, 2^52
local virtual, now = tonumber(ARGV[1]), nil
if virtual >= 0 then
  now = virtual
else
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

local function text(n) return string.format('%.0f', n) end

-- millis returns us as a time to live in ms. Virtual time goes at a pace of its own, so there keys live an hour at
-- least.
local function millis(us)
  local ms = max(math.ceil(us / 1000), 1)
  if virtual >= 0 then ms = max(ms, 3600000) end
  return text(ms)
end

-- exceeds says whether a sum of units is over the limit. Nothing passes a limit of 0, not even a hit of 0.
local function exceeds(h, sum) return sum > h.max or h.max == 0 end

-- judge_count judges a hit on a counter that has n units and takes at most room more.
local function judge_count(n, h, room)
  if h.op == 'refund' then return false, -min(n, h.amount) end
  local add = min(h.amount, room or h.amount)
  if h.op == 'force' then return false, add end
  local over = exceeds(h, n + h.amount)
  if h.op == 'charge' and (not over or h.count_blocked) then return over, add end
  return over, 0
end

-- is_late says whether h is a refund of units that another window counted than that which ends at window_end.
local function is_late(h, window_end)
  return h.op == 'refund' and h.window ~= 0 and h.window ~= window_end
end

-- corrects returns add, or nil if the hit adds nothing to a state that is ahead of the clock. Such a state is written
-- as look returned it, so that its wait starts now.
local function corrects(s, add)
  if add == 0 and s.ahead then return nil end
  return add
end

-- read returns what the pattern finds in the text at a key; nil if there is none. Where another program has written
-- there, the hit fails and the text stays: isForeignValue knows the error.
local function read(key, pattern)
  local value = call('GET', key)
  if not value then return nil end
  local first, second, third = string.match(value, pattern)
  if not first then error('the key holds no counter') end
  return first, second, third
end
