-- One hit is h: key, kind, op, amount (and its text), max, flags, ttl (s),
-- period and min (µs), and where in ARGV the rest is: of a bucket the increment
-- and the tolerance, as pairs of µs and ns.
-- Times are whole µs, which doubles hold exactly until the year 2255.
local call, floor, max, min = redis.call, math.floor, math.max, math.min
local none, year2025, century = -1, 1735689600000000, 3153600000000000
local most = 4503599627370496 -- where counts stop growing, 2^52
local virtual, now = tonumber(ARGV[1]), nil
if virtual >= 0 then
  now = virtual
else
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

local function text(n) return string.format('%.0f', n) end
-- Virtual time goes at a pace of its own, so there keys live an hour at least.
local function millis(us)
  local ms = max(math.ceil(us / 1000), 1)
  if virtual >= 0 then ms = max(ms, 3600000) end
  return text(ms)
end
local function blocked(h) return h.flags % 2 == 1 end

-- Each kind has look (the state, which never writes), judge (is h over, and what
-- does it add, or take away when negative; nil: nothing, but it writes) and write.
-- They are made when they are asked for: a call is as dear as what it defines.
local make = {}
local kinds = setmetatable({}, {__index = function(t, name)
  local kind = make[name]()
  rawset(t, name, kind)
  return kind
end})

local function judge_count(n, h, room)
  if h.op == 'r' then return false, -min(n, h.amount) end
  local add = min(h.amount, room or h.amount)
  if h.op == 'f' then return false, add end
  local over = n + h.amount > h.max
  if h.op == 'c' and (not over or blocked(h)) then return over, add end
  return over, 0
end

-- fixed_window: a number; the window is in the key.
make.w = function()
  return {
    look = function(h) return {tonumber(call('GET', h.key) or 0)} end,
    judge = function(s, h) return judge_count(s[1], h) end,
    write = function(s, h, add)
      if add < 0 then
        call('DECRBY', h.key, text(-add))
      elseif call('INCRBY', h.key, h.text) == h.amount
        -- A key that does not name its period may be that of a shorter one.
        or not h.key:find('|fw:', 1, true) and call('PTTL', h.key) * 1000 < h.period then
        call('EXPIRE', h.key, h.ttl)
      end
    end,
  }
end

-- A window from its first hit, {count, end}. An end that is more than a period
-- ahead comes from a clock that stepped back: it is a period ahead, and a charge
-- stores that although it is refused, as its wait starts now.
local function window(h, n, e)
  local latest = now + h.period
  return {n, min(e, latest), pulled = e > latest}
end
local function judge_window(s, h)
  local over, add = judge_count(s[1], h, most - s[1])
  if add == 0 and s.pulled and h.op == 'c' and h.amount > 0 then return over, nil end
  return over, add
end

-- first_hit_window: "count end".
make.f = function()
  return {
    look = function(h)
      local n, e = string.match(call('GET', h.key) or '', '^(%d+) (%d+)$')
      if not n or tonumber(e) <= now then return {0, 0} end
      return window(h, tonumber(n), tonumber(e))
    end,
    judge = judge_window,
    write = function(s, h, add)
      local e = s[2]
      if e == 0 then e = now + h.period end
      call('SET', h.key, text(s[1] + (add or 0)) .. ' ' .. text(e), 'PX', millis(e - now))
    end,
  }
end

-- The same as Button's divvy keeps it: what is left, and the key lives as long
-- as the window. A key that has lost its expiry would never end: it gets one.
make.d = function()
  return {
    look = function(h)
      local left = tonumber(call('GET', h.key) or '')
      if not left then return {0, 0} end
      local ms = call('PTTL', h.key)
      if ms < 0 then
        ms = h.period / 1000
        if h.op ~= 'l' then call('PEXPIRE', h.key, text(ms)) end
      end
      return window(h, max(h.max - left, 0), now + ms * 1000)
    end,
    judge = judge_window,
    write = function(s, h, add)
      local e = s[2]
      if e == 0 then e = now + h.period end
      call('SET', h.key, text(h.max - s[1] - (add or 0)), 'PX', millis(e - now))
    end,
  }
end

-- sliding_window_counter: "start previous current". a*b <= c*d, exactly, for
-- numbers below 2^52: in parts of 26 bits.
make.c = function()
  local half = 67108864
  local function product(a, b)
    local a1, b1 = floor(a / half), floor(b / half)
    local a0, b0 = a - a1 * half, b - b1 * half
    local low = a0 * b0
    local mid = a1 * b0 + a0 * b1 + floor(low / half)
    return {a1 * b1 + floor(mid / half), mid % half, low % half}
  end
  local function fits(a, b, c, d)
    local p, q = product(a, b), product(c, d)
    for i = 1, 3 do
      if p[i] ~= q[i] then return p[i] < q[i] end
    end
    return true
  end
  return {
    look = function(h)
      local start, p, n = string.match(call('GET', h.key) or '', '^(%d+) (%d+) (%d+)$')
      local this = now - now % h.period
      start, p, n = tonumber(start or 0), tonumber(p or 0), tonumber(n or 0)
      if p == 0 and n == 0 or this > start + h.period then return {this, 0, 0} end
      if this == start + h.period then return {this, n, 0} end
      return {start, p, n}
    end,
    judge = function(s, h)
      if h.op == 'r' then return false, -min(s[3], h.amount) end
      local add = min(h.amount, most - s[3])
      if h.op == 'f' then return false, add end
      local room = h.max - s[3] - h.amount
      local over = room < 0 or not fits(s[2], h.period - max(now - s[1], 0), room, h.period)
      if h.op == 'c' and (not over or blocked(h)) then return over, add end
      return over, 0
    end,
    write = function(s, h, add)
      local value = text(s[1]) .. ' ' .. text(s[2]) .. ' ' .. text(s[3] + add)
      call('SET', h.key, value, 'PX', millis(s[1] + 2 * h.period - now))
    end,
  }
end

-- gcra: the arrival time, in µs since 2025 with three decimals, and the last
-- hit behind a blank where there is a minimum interval. Differences to now are
-- pairs of µs and ns.
make.g = function()
  local function more(a, b)
    local us, ns = a[1] + b[1], a[2] + b[2]
    if ns >= 1000 then return {us + 1, ns - 1000} end
    return {us, ns}
  end
  local function less(a, b)
    local us, ns = a[1] - b[1], a[2] - b[2]
    if ns < 0 then us, ns = us - 1, ns + 1000 end
    if us < 0 then return {0, 0} end
    return {us, ns}
  end
  local function pair(i) return {ARGV[i] + 0, ARGV[i + 1] + 0} end
  local function above(a, b) return a[1] > b[1] or a[1] == b[1] and a[2] > b[2] end
  return {
    look = function(h)
      local us, ns, rest = string.match(call('GET', h.key) or '', '^(%-?%d+)%.(%d%d%d)(.*)$')
      if not us then return {none, 0, none} end
      local last = tonumber(string.match(rest, '^ (%-?%d+)$') or '')
      return {tonumber(us) + year2025, tonumber(ns), last and last + year2025 or none}
    end,
    judge = function(s, h)
      if h.max == 0 then
        return (h.op == 'c' or h.op == 'l') and h.amount > 0, 0
      end
      local inc, tol = pair(h.rest), pair(h.rest + 2)
      local tat, ahead = {0, 0}, tol
      if blocked(h) then ahead = {century, 0} end
      if s[1] ~= none and s[1] >= now then tat = {s[1] - now, s[2]} end
      if above(tat, ahead) then tat = ahead end
      local next = more(tat, inc)
      local over = above(next, tol)
      if above(next, ahead) then next = ahead end
      local add = h.amount > 0 and 1 or 0
      local last = s[3]
      if last ~= none then last = min(last, now) end
      if h.op == 'r' then
        local back = less(tat, inc)
        return false, above(tat, back) and 1 or 0, back, last
      end
      if h.op == 'f' then return false, add, next, now end
      over = over or last ~= none and h.min > 0 and now - last < h.min
      if h.op == 'c' and (not over or blocked(h)) then return over, add, next, now end
      -- A charge that has to wait begins to do so now, also if the clock stepped back.
      if h.op == 'c' and add > 0 and s[1] ~= none and (s[3] > now or above({s[1] - now, s[2]}, ahead)) then
        if s[1] < now then tat = {s[1] - now, s[2]} end
        return over, nil, tat, last
      end
      return over, 0
    end,
    write = function(s, h, add, next, last)
      local tat = now + next[1] - year2025
      if next[1] == 0 and next[2] == 0 then tat = -year2025 end -- full, whatever the clock says
      local value = text(tat) .. string.format('.%03d', next[2])
      local wait = next[1] + (next[2] > 0 and 1 or 0)
      if last ~= none and last + h.min > now then
        value = value .. ' ' .. text(last - year2025)
        wait = max(wait, last + h.min - now)
      end
      if wait <= 0 then
        call('DEL', h.key)
      else
        call('SET', h.key, value, 'PX', millis(wait))
      end
    end,
  }
end

-- sliding_window: a list, newest first, of "time:total", where total is that of
-- all hits up to this one. The last element is the one before the window, or
-- "0:0": its total is where the window's begins.
make.l = function()
  local function mark(key, i)
    local at, total = string.match(call('LINDEX', key, i) or '', '^(%d+):(%d+)$')
    return tonumber(at), tonumber(total)
  end
  -- seek finds the oldest mark that is not before least, or of totals, whose total
  -- is not below it: its place, counted from the end, and its time. It is mostly
  -- among the oldest few, so the search begins there.
  local function seek(key, least, totals)
    local before, place, step = 1, 2, 1
    local at, total = mark(key, -place)
    while at and (totals and total or at) < least do
      before, place, step = place, place + step, 2 * step
      at, total = mark(key, -place)
    end
    while place - before > 1 do
      local middle = floor((before + place) / 2)
      local t, sum = mark(key, -middle)
      if t and (totals and sum or t) < least then
        before = middle
      else
        place, at = middle, t
      end
    end
    return place, at or none
  end
  local function leaves(key, room)
    local _, total = mark(key, 0)
    local _, at = seek(key, total - room, true)
    return at
  end
  return {
    look = function(h)
      local s = {0, none, none, none, none, drop = 0, base = 0, total = 0, size = call('LLEN', h.key)}
      if s.size == 0 then return s end
      local newest, whole = mark(h.key, 0)
      if s.size > 1 then s[2] = newest end
      s.now, s.total = max(now, s[2]), whole
      local place = seek(h.key, s.now - h.period + 1)
      local _, base = mark(h.key, 1 - place)
      s.base = base
      if place > 2 and h.min > h.period then place = seek(h.key, s.now - h.min + 1) end
      s.drop = place - 2
      s[1] = s.total - s.base
      return s
    end,
    judge = function(s, h)
      local used = s[1]
      if h.op == 'r' then return false, -min(used, h.amount) end
      local add = h.amount
      if h.op == 'f' then return false, add end
      local over = used + h.amount > h.max or s[2] ~= none and s.now - s[2] < h.min
      if h.op == 'c' and (not over or blocked(h)) then return over, add end
      return over, 0
    end,
    write = function(s, h, add)
      if add < 0 then
        local left = s.total + add
        local _, base = mark(h.key, -1)
        if left <= base then
          call('LTRIM', h.key, -1, -1)
          return
        end
        local place, at = seek(h.key, left, true)
        call('LTRIM', h.key, -place, -1)
        call('LSET', h.key, 0, text(at) .. ':' .. text(left))
        return
      end
      local at = s.now or now
      if s.size == 0 then call('LPUSH', h.key, '0:0') end
      if s.drop > 0 then call('LTRIM', h.key, 0, -1 - s.drop) end
      local total = s.total + add
      if s[2] == at then call('LPOP', h.key) end -- hits of one instant are one mark
      call('LPUSH', h.key, text(at) .. ':' .. text(total))
      -- Forget what matters to no hit: more than the limit came after it.
      local place = seek(h.key, total - h.max, true)
      if place > 2 then call('LTRIM', h.key, 0, 1 - place) end
      if total > 1000000000000000 then -- begin to count anew, before doubles get coarse
        local _, base = mark(h.key, -1)
        base = max(base, total - most)
        local all = call('LRANGE', h.key, 0, -1)
        call('DEL', h.key)
        for _, m in ipairs(all) do
          local t, sum = string.match(m, '^(%d+):(%d+)$')
          call('RPUSH', h.key, t .. ':' .. text(max(sum - base, 0)))
        end
      end
      call('PEXPIRE', h.key, millis(max(h.period, h.min)))
    end,
    -- after adds what the verdict needs of the state behind the hit.
    after = function(s, h)
      s[3] = none
      if call('LLEN', h.key) < 2 then return end
      s[3] = mark(h.key, 0)
      local used = s[1] + (s.add or 0)
      if h.max > 0 and used + 1 > h.max then s[5] = leaves(h.key, h.max - 1) end
      if h.amount == 1 then
        s[4] = s[5]
      elseif h.amount <= h.max and used + h.amount > h.max then
        s[4] = leaves(h.key, h.max - h.amount)
      end
    end,
  }
end

local hits, seen, twice, atomic = {}, {}, false, false
for i, key in ipairs(KEYS) do
  local a = 12 * i - 10
  local flags = ARGV[a + 4] + 0
  hits[i] = {
    key = key, kind = kinds[ARGV[a]], op = ARGV[a + 1], text = ARGV[a + 2], amount = ARGV[a + 2] + 0, max = ARGV[a + 3] + 0, flags = flags,
    ttl = ARGV[a + 5], period = ARGV[a + 6] + 0, min = ARGV[a + 7] + 0, rest = a + 8,
  }
  twice = twice or seen[key]
  seen[key] = true
  atomic = atomic or flags % 4 >= 2
end

-- run does what h asks for, and returns whether it is over and what it found.
local function run(h)
  local s = h.kind.look(h)
  local over, add, a, b = h.kind.judge(s, h)
  if add ~= 0 then h.kind.write(s, h, add, a, b) end
  s.add = add or 0
  if h.kind.after then h.kind.after(s, h) end
  return over, s
end

-- First all hits are tried. With each key there once, nobody changes what others
-- find, and looking is enough; else they are charged, and taken back when one
-- refuses.
local vetoed, tried, saved = false, {}, {}
if atomic then
  if twice then
    for key in pairs(seen) do
      local kind = call('TYPE', key).ok
      saved[#saved + 1] = {key, kind, call('PTTL', key), kind == 'list' and call('LRANGE', key, 0, -1) or kind == 'string' and call('GET', key)}
    end
  end
  for i, h in ipairs(hits) do
    local over, s
    if twice then
      over, s = run(h)
    else
      s = h.kind.look(h)
      over = h.kind.judge(s, h)
    end
    tried[i] = {over, s}
    if over and h.flags < 4 then vetoed = true end
  end
  if twice and vetoed then
    for _, v in ipairs(saved) do
      call('DEL', v[1])
      if v[2] == 'list' then
        for _, m in ipairs(v[4]) do call('RPUSH', v[1], m) end
      elseif v[2] == 'string' then
        call('SET', v[1], v[4])
      end
      if v[2] ~= 'none' and v[3] > 0 then call('PEXPIRE', v[1], text(v[3])) end
    end
  end
end

local reply = {vetoed and 1 or 0, now}
local function put(over, s)
  reply[#reply + 1] = over and 1 or 0
  for i = 1, 5 do reply[#reply + 1] = s[i] or 0 end
end
for i, h in ipairs(hits) do
  if vetoed and h.flags % 4 >= 2 then
    if h.op == 'r' or h.op == 'f' then h.amount = 0 end
    local s = h.kind.look(h)
    if h.kind.after then h.kind.after(s, h) end
    put(tried[i][1], s)
    for j = 1, 5 do reply[#reply + 1] = tried[i][2][j] or 0 end
  elseif twice and atomic and not vetoed then
    put(tried[i][1], tried[i][2])
  else
    put(run(h))
  end
end
return reply
