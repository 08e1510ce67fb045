-- One hit is h: key, kind, op, amount (and its text), max, flags, ttl (s),
-- period and min (µs), and where in ARGV the rest is: of a bucket the increment
-- and the tolerance, as pairs of µs and ns. Of a limit with holds follow the id,
-- the time of a hold, how long at most one that expired still counts, and the
-- start and the end of the fixed window (µs; 0 for other kinds).
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

-- exceeds says whether a sum of units is over h.max. Nothing passes a limit of 0,
-- not even a hit of 0.
local function exceeds(h, sum) return sum > h.max or h.max == 0 end
local function judge_count(n, h, room)
  if h.op == 'r' then return false, -min(n, h.amount) end
  local add = min(h.amount, room or h.amount)
  if h.op == 'f' then return false, add end
  local over = exceeds(h, n + h.amount)
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
      elseif call('INCRBY', h.key, h.text or text(h.amount)) == h.amount
        -- A key that does not name its period may be that of a shorter one.
        or not h.key:find('|fw:', 1, true) and call('PTTL', h.key) * 1000 < h.period then
        call('EXPIRE', h.key, h.ttl)
      end
    end,
  }
end

-- corrects returns add, or nil if a hit adds nothing to a state that is ahead of
-- the clock: it is written as look returned it, so that its wait starts.
local function corrects(s, add)
  if add == 0 and s.ahead then return nil end
  return add
end

-- A window from its first hit, {count, end}. An end that is more than a period
-- ahead comes from a clock that was set back: it is a period ahead.
local function window(h, n, e)
  local latest = now + h.period
  return {n, min(e, latest), ahead = e > latest}
end
local function judge_window(s, h)
  local over, add = judge_count(s[1], h, most - s[1])
  return over, corrects(s, add)
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
      -- The clock was set back: all that counts is of its window.
      if this < start then return {this, 0, min(p + n, most), ahead = true} end
      return {start, p, n}
    end,
    judge = function(s, h)
      if h.op == 'r' then return false, corrects(s, -min(s[3], h.amount)) end
      local add = min(h.amount, most - s[3])
      if h.op == 'f' then return false, corrects(s, add) end
      local room = h.max - s[3] - h.amount
      local over = room < 0 or h.max == 0 or not fits(s[2], h.period - (now - s[1]), room, h.period)
      if h.op == 'l' or over and not blocked(h) then add = 0 end
      return over, corrects(s, add)
    end,
    write = function(s, h, add)
      local value = text(s[1]) .. ' ' .. text(s[2]) .. ' ' .. text(s[3] + (add or 0))
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
  -- refill returns the time in which units come back, where ARGV has that of one
  -- unit. It is exact, or longer than any tolerance.
  local function refill(h, units)
    local us, ns, thousands = ARGV[h.rest] + 0, ARGV[h.rest + 1] + 0, floor(units / 1000)
    local rest = ns * (units - thousands * 1000)
    us = us * units + ns * thousands + floor(rest / 1000)
    if us >= century then return {century, 1} end
    return {us, rest % 1000}
  end
  return {
    refill = refill,
    look = function(h)
      local us, ns, rest = string.match(call('GET', h.key) or '', '^(%-?%d+)%.(%d%d%d)(.*)$')
      if not us then return {none, 0, none} end
      local last = tonumber(string.match(rest, '^ (%-?%d+)$') or '')
      return {tonumber(us) + year2025, tonumber(ns), last and last + year2025 or none}
    end,
    judge = function(s, h)
      if h.max == 0 then
        return h.op == 'c' or h.op == 'l', 0
      end
      local inc, tol = h.set and refill(h, h.amount) or pair(h.rest), pair(h.rest + 2)
      local tat, ahead = {0, 0}, tol
      if blocked(h) or h.keeps then ahead = {century, 0} end
      if s[1] ~= none and s[1] >= now then tat = {s[1] - now, s[2]} end
      if above(tat, ahead) then tat = ahead end
      local next = more(tat, inc)
      local over = above(next, tol)
      if above(next, ahead) then next = ahead end
      local add = h.amount > 0 and 1 or 0
      local last = s[3]
      if last ~= none then last = min(last, now) end
      local asks = h.op == 'c' or h.op == 'l'
      if h.op == 'r' then
        local back = less(tat, inc)
        if above(tat, back) then return false, 1, back, last end
      end
      if h.op == 'f' and add > 0 then return false, add, next, now end
      over = asks and (over or last ~= none and h.min > 0 and now - last < h.min)
      if h.op == 'c' and add > 0 and (not over or blocked(h)) then return over, add, next, now end
      -- After the clock was set back, the wait begins now.
      if s[1] ~= none and (s[3] > now or above({s[1] - now, s[2]}, ahead)) then
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

-- A gcra that keeps debt beyond its burst, which was charged with a larger one.
make.k = function()
  local gcra = make.g()
  local judge = gcra.judge
  gcra.judge = function(s, h)
    h.keeps = true
    return judge(s, h)
  end
  return gcra
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
    return min(at, now)
  end
  -- leaves_for returns which hit must leave the window for an amount to pass, if one must.
  local function leaves_for(s, h, amount)
    if amount <= h.max and s[1] + (s.add or 0) + amount > h.max then return leaves(h.key, h.max - amount) end
    return none
  end
  -- gather makes one mark of now of all marks that are later.
  local function gather(s, h)
    call('LTRIM', h.key, 1 - seek(h.key, now + 1), -1)
    if call('LLEN', h.key) > 1 and mark(h.key, 0) == now then call('LPOP', h.key) end
    call('LPUSH', h.key, text(now) .. ':' .. text(s.total))
  end
  return {
    look = function(h)
      local s = {0, none, none, none, none, drop = 0, base = 0, total = 0, size = call('LLEN', h.key)}
      if s.size == 0 then return s end
      local newest, whole = mark(h.key, 0)
      if s.size > 1 then s[2], s.ahead = min(newest, now), newest > now end
      s.total = whole
      local place = seek(h.key, now - h.period + 1)
      local _, base = mark(h.key, 1 - place)
      s.base = base
      if place > 2 and h.min > h.period then place = seek(h.key, now - h.min + 1) end
      s.drop = place - 2
      s[1] = s.total - s.base
      return s
    end,
    judge = function(s, h)
      local used = s[1]
      if h.op == 'r' then return false, corrects(s, -min(used, h.amount)) end
      local add = h.amount
      if h.op == 'f' then return false, corrects(s, add) end
      local over = exceeds(h, used + h.amount) or s[2] ~= none and now - s[2] < h.min
      if h.op == 'l' or over and not blocked(h) then add = 0 end
      return over, corrects(s, add)
    end,
    write = function(s, h, add)
      if s.ahead then gather(s, h) end
      if not add then
        call('PEXPIRE', h.key, millis(max(h.period, h.min)))
        return
      end
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
      if s.size == 0 then call('LPUSH', h.key, '0:0') end
      if s.drop > 0 then call('LTRIM', h.key, 0, -1 - s.drop) end
      local total = s.total + add
      if s[2] == now then call('LPOP', h.key) end -- hits of one instant are one mark
      call('LPUSH', h.key, text(now) .. ':' .. text(total))
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
    leaves = leaves_for,
    after = function(s, h)
      s[3] = none
      if call('LLEN', h.key) < 2 then return end
      s[3] = min(mark(h.key, 0), now)
      -- Of a limit with holds, h.amount has the units of open holds, too.
      local other = h.set and h.units or 1
      if h.max > 0 then s[5] = leaves_for(s, h, other) end
      s[4] = h.amount == other and s[5] or leaves_for(s, h, h.amount)
    end,
  }
end

-- Limits with holds: a counter of the kind h.under, to which h.op and h.amount
-- belong, and a set of holds; h.ask and h.units are those of the hit. A limit of
-- concurrency has no h.under, nothing but its holds. The set is a hash of binary
-- numbers and ids:
--   m          the sums, see load
--   an id      of an open hold its place and units (12 bytes); of one that is done
--              since when, what was charged when it expired, and its chunk (18)
--   5 bytes    a place of the open holds, in the order of their times: since when
--              (7 bytes), and the id or the units; or the other end of a gap (5)
--   d          the newest holds that are done, in the order in which they became
--              so: for each since when (7 bytes), and the id
--   4 bytes    a chunk of the older ones, a former d; the numbers of chunks wrap
-- A set is changed in memory until flush. Where a table is made with nils, they
-- are room for what comes: a table that grows is dear.
make.h = function()
  local pack, numbers = struct.pack, struct.unpack
  local most_open, most_done = 100000, 16384
  local most_seen = 32
  local sums, sets = '>I7I7I7I7I7I7I3I5I5I4I2I3', {}

  local function get(set, name)
    local v = set.fields[name]
    if v == nil then
      v = call('HGET', set.key, name)
      set.fields[name] = v
    end
    return v
  end
  local function put(set, name, value)
    local changed = set.changed
    set.fields[name] = value
    changed[#changed + 1] = name
  end
  local function is_large(set) return set.count + set.dones > 16 end
  -- oldest returns what is at the place of the oldest open hold, and since when.
  local function oldest(set)
    local item = get(set, pack('>I5', set.first))
    if #item == 5 then
      local last = numbers('>I5', item)
      put(set, pack('>I5', set.first), false)
      put(set, pack('>I5', last), false)
      set.first = last + 1
      item = get(set, pack('>I5', set.first))
    end
    set.oldest = numbers('>I7', item)
    return item, set.oldest
  end

  -- closer returns what ends holds.
  local function closer()
    local chunk = 8
    local function chunk_name(n) return pack('>I4', n % 4294967296) end
    -- remove takes an open hold of so many units out of its place. The first place
    -- may be in a gap then, but not the last one.
    local function remove(set, place, units)
      local first, last = set.first, set.next - 1
      set.count, set.units = set.count - 1, set.units - units
      if first == last then
        set.next = first -- The next hold overwrites the place.
        put(set, 'm', true)
        return
      end
      local here = pack('>I5', place)
      if place == first and set.count > 0 then
        set.first = place + 1
        put(set, here, false)
        return
      end
      local before, behind = pack('>I5', place - 1), pack('>I5', place + 1)
      if set.count == 0 then
        for _, name in ipairs({pack('>I5', first), before, here, behind, pack('>I5', last)}) do put(set, name, false) end
        set.next = first
        return
      end
      -- The place joins the gaps beside it, whose ends there go unless they are ends of the gap that is there now.
      if place < last and set.fields[before] == nil and set.fields[behind] == nil then
        local values = call('HMGET', set.key, before, behind)
        set.fields[before], set.fields[behind] = values[1], values[2]
      end
      local from, to, item = place, place, get(set, before)
      if #item == 5 then from = numbers('>I5', item) end
      item = place < last and get(set, behind) or ''
      if #item == 5 then to = numbers('>I5', item) end
      local is_outside = from <= first or to == last
      if from < place and (is_outside or from < place - 1) then put(set, before, false) end
      if to > place and (is_outside or to > place + 1) then put(set, behind, false) end
      if is_outside or from < place and place < to then put(set, here, false) end
      if not is_outside then
        local start, stop = pack('>I5', from), pack('>I5', to)
        put(set, start, stop)
        if from < to then put(set, stop, start) end
        return
      end
      put(set, pack('>I5', max(from, first)), false)
      put(set, pack('>I5', to), false)
      if to == last then
        set.next = from
        set.opened = numbers('>I7', get(set, pack('>I5', from - 1)))
      else
        set.first = to + 1
      end
    end
    -- finish makes a hold done. A small set has small chunks, as a value above 64
    -- bytes would make it large.
    local function finish(set, id, at, credit)
      local newest = get(set, 'd') or ''
      if set.dones == 0 then
        set.done_oldest = at
      elseif at < set.now then -- A hold expires before an earlier one if the limit has a shorter hold now.
        at = max(at, (numbers('>I7', newest, #newest - 22)))
      end
      if #newest >= 23 * (is_large(set) and chunk or 2) then
        put(set, chunk_name(set.done_first + set.chunks), newest)
        set.chunks, newest = set.chunks + 1, ''
      end
      local since = pack('>I7', at)
      put(set, id, since .. pack('>I7', credit) .. chunk_name(set.done_first + set.chunks))
      put(set, 'd', newest .. since .. id)
      set.dones, set.newest = set.dones + 1, max(set.newest, at)
    end
    -- forgo makes a chunk forget a hold that was done and gets another record.
    local function forgo(set, name, id)
      if name == chunk_name(set.done_first + set.chunks) then name = 'd' end
      local dones = get(set, name)
      for i = 8, #dones, 23 do
        if dones:sub(i, i + 15) == id then put(set, name, dones:sub(1, i - 1) .. string.rep('\0', 16) .. dones:sub(i + 16)) end
      end
    end
    return remove, finish, forgo, chunk_name
  end

  -- fetch reads the open holds at size places from place on, and returns the place behind them.
  local function fetch(set, place, size)
    local function read(names)
      local missing = {}
      for _, name in ipairs(names) do
        if set.fields[name] == nil then missing[#missing + 1] = name end
      end
      if #missing == 0 then return end
      local values = call('HMGET', set.key, unpack(missing))
      for i, name in ipairs(missing) do set.fields[name] = values[i] end
    end
    local names, ids = {}, {}
    for p = place, min(set.next, place + size) - 1 do names[#names + 1] = pack('>I5', p) end
    read(names)
    for _, name in ipairs(names) do
      local item = set.fields[name]
      if item and #item == 23 then ids[#ids + 1] = item:sub(8) end
    end
    read(ids)
    return place + #names
  end
  -- units_of returns the units of the open hold that a place has.
  local function units_of(set, item)
    if #item == 23 then return (numbers('>I7', get(set, item:sub(8)), 6)) end
    return (numbers('>I7', item, 8))
  end

  -- expirer returns what is rarely asked for.
  local function expirer()
    local remove, finish, _, chunk_name = closer()
    -- forget removes the holds that are done since due from the oldest chunk.
    local function forget(set, due)
      local name = set.chunks > 0 and chunk_name(set.done_first) or 'd'
      local old, left = get(set, name), ''
      for i = 1, #old, 23 do
        set.done_oldest = numbers('>I7', old, i)
        if set.done_oldest > due then
          left = old:sub(i)
          break
        end
        put(set, old:sub(i + 7, i + 22), false)
        set.dones = set.dones - 1
      end
      put(set, name, left ~= '' and left)
      if left == '' and name ~= 'd' then set.done_first, set.chunks = (set.done_first + 1) % 4294967296, set.chunks - 1 end
    end
    -- charge charges units at the time of so many µs ago.
    local function charge(h, units, late)
      local clock = now
      now, h.op, h.amount = now - late, 'f', units
      local s = h.under.look(h)
      local _, add, a, b = h.under.judge(s, h)
      if add ~= 0 then h.under.write(s, h, add, a, b) end
      now = clock
    end
    -- The open holds that have expired, and their units are charged at the time when
    -- they did. After the clock was set back, that time is not known.
    return function(set, h, last)
      local due, sum, size = set.now - h.hold, 0, 4
      while set.count > 0 and set.oldest <= last do
        local stop = fetch(set, set.first, size)
        repeat
          local item, at = oldest(set)
          if at > last then break end
          local units = units_of(set, item)
          h.expired = h.expired + 1
          if not h.release then h.charged = h.charged + units end
          if #item == 23 then
            local id = item:sub(8)
            put(set, id, false)
            if not h.release then
              local late = set.stepped and 0 or due - at
              if h.under ~= kinds.w then
                charge(h, units, late)
              elseif now - late >= h.start then
                sum = sum + units -- In a window the time does not matter.
              end
              finish(set, id, at + h.hold, units)
            end
          end
          remove(set, set.first, units)
        until set.count == 0 or set.first >= stop
        size = min(size * 2, 1024)
      end
      if sum > 0 then charge(h, sum, 0) end
      -- To forget some at a time is cheaper than to forget each in time. Virtual
      -- time may go back, and must not find again what was forgotten.
      if virtual >= 0 then
        while set.dones > 0 and set.done_oldest <= due do forget(set, due) end
      elseif set.dones > 0 and set.done_oldest <= due - h.hold / 4 then
        forget(set, due)
      end
      while set.dones >= most_done do forget(set, set.newest) end
    end
  end

  return {
    sets = sets,
    -- The state has what the verdict needs of the holds, in the order of the reply.
    -- Holds that have expired are removed first.
    look = function(h)
      local set, id = sets[h.set], h.id
      if not set then
        local values
        if h.ask == 'r' or h.ask == 'f' then
          values = call('HMGET', h.set, 'm', id, 'd')
        else
          values = call('HMGET', h.set, 'm', id)
        end
        local meta = values[1]
        local newest, opened, oldest_since, done_oldest, offset, units, count, first, next, done_first, chunks, dones =
          numbers(sums, meta or string.rep('\0', 64))
        set = {
          key = h.set, fields = {[id] = values[2], d = values[3]}, changed = {nil, nil, nil, nil, nil, nil, nil, nil}, hold = h.hold, life = h.hold + h.keep, now = now + offset,
          was = meta and newest, newest = newest, opened = opened, oldest = oldest_since, done_oldest = done_oldest, offset = offset,
          units = units, count = count, first = first, next = next, done_first = done_first, chunks = chunks, dones = dones,
          large = count + dones > 16,
        }
        if set.now < newest then -- The time of a set never goes back.
          set.offset, set.now, set.stepped = offset + newest - set.now, newest, true
          put(set, 'm', true)
        end
        sets[h.set] = set
      end
      if not h.expired then
        h.expired, h.charged = 0, 0
        local due = set.now - h.hold
        -- A hit that was sent in the last fixed window knows no counter of this one, in
        -- which holds may have expired: the next hit charges them.
        local last = h.stop > 0 and min(due, h.stop - 1 + set.offset - h.hold) or due
        if set.count > 0 and set.oldest <= last or set.dones > 0 and set.done_oldest <= due or set.dones >= most_done then expirer()(set, h, last) end
      end
      local record, known, units, place, chunk = id ~= '' and get(set, id), 0, 0, nil, nil
      if record and #record == 12 then
        place, units = numbers('>I5I7', record)
        known = 1
      elseif record then
        local at, credit = numbers('>I7I7', record)
        chunk = record:sub(15)
        if at + h.hold > set.now then known, units = 2, credit end
      end
      return {
        set.units, set.count, 0, 0, known, units, h.expired, h.charged,
        set = set, counter = h.under and h.under.look(h) or {}, place = place, chunk = chunk, change = false, add = 0,
      }
    end,
    judge = function(s, h)
      local set, under, named, op = s.set, h.under, h.id ~= '', nil
      local known, credit = s[5], s[6]
      local asks, over, add, a, b = h.ask == 'c' or h.ask == 'l', false, 0, nil, nil
      -- A look at the counter corrects it if the clock was set back.
      h.op, h.amount, s.change = 'l', asks and known == 0 and set.units + h.units or 0, false
      if under then over, add, a, b = under.judge(s.counter, h) else over = exceeds(h, h.amount) end
      h.amount = h.units
      if asks then
        if known > 0 then return false, add, a, b end
        local opens = h.units > 0 and (named or not under)
        over = over or opens and set.count >= most_open
        if over or h.ask == 'l' then return over, add, a, b end
        if opens then s.change = 'open' elseif not named and under then op = 'c' end
      elseif not named and not under then
        if h.ask == 'f' and h.units > 0 and set.count < most_open then s.change = 'open' end
      elseif not named then
        op = h.ask
      elseif known < 2 or h.ask == 'f' and credit > 0 then
        s.change = 'close'
        if h.ask == 'f' and under then
          op = 'f'
          if known == 2 then h.amount = h.units - min(credit, h.units) end
        end
      end
      if not op then return false, add, a, b end
      h.op = op
      over, add, a, b = under.judge(s.counter, h)
      return false, add, a, b
    end,
    write = function(s, h, add, a, b)
      local set, id = s.set, h.id
      if add ~= 0 then h.under.write(s.counter, h, add, a, b) end
      if not s.change then return end
      if s.chunk or s.change == 'close' then
        local remove, finish, forgo = closer()
        if s.chunk then forgo(set, s.chunk, id) end
        if s.change == 'close' then
          if s.place then remove(set, s.place, s[6]) end
          finish(set, id, set.now, 0)
          return
        end
      end
      local place = pack('>I5', set.next)
      if set.count == 0 then set.oldest = set.now end
      if id == '' then
        put(set, place, pack('>I7I7', set.now, h.units))
      else
        put(set, place, pack('>I7', set.now) .. id)
        put(set, id, place .. pack('>I7', h.units))
      end
      set.next, set.count, set.units = set.next + 1, set.count + 1, set.units + h.units
      set.newest, set.opened = set.now, set.now
    end,
    -- foresee adds to the state what the waits depend on: when the newest open hold
    -- expires, and the oldest of them: for each when it expires, its units and, where
    -- it is released from a sliding window, which hit must leave that as well.
    foresee = function(s, h, over)
      local set, under, ends = s.set, h.under, {}
      s.ends, s[4], h.amount = ends, set.opened + h.hold - set.now, h.units + set.units
      local chained = not h.release and (under == kinds.g or under == kinds.f) and set.count > 1
      if set.count == 0 or not over and not chained then return end
      local place, open, stop = set.first, set.units, set.first
      while place < set.next and s[3] < most_seen do
        if place >= stop then stop = fetch(set, place, most_seen) end
        local item = get(set, pack('>I5', place))
        if #item == 5 then
          place = numbers('>I5', item) + 1
        else
          local units, leaves = units_of(set, item), none
          open = open - units
          if over and h.release and under == kinds.l then leaves = under.leaves(s.counter, h, h.units + open) end
          ends[#ends + 1] = numbers('>I7', item) + h.hold - set.now
          ends[#ends + 1] = units
          ends[#ends + 1] = leaves
          s[3], place = s[3] + 1, place + 1
        end
      end
    end,
    flush = function()
      for _, set in pairs(sets) do
        if #set.changed > 0 then
          local meta = pack(sums, set.newest, set.opened, set.oldest, set.done_oldest, set.offset, set.units,
            set.count, set.first, set.next, set.done_first, set.chunks, set.dones)
          -- Once it has had a value above 64 bytes, Redis finds the fields of the hash by their hashes.
          if is_large(set) and not set.large then meta, set.large = meta .. meta, true end
          set.fields.m = meta
          local values, gone = {'m', meta, nil, nil, nil, nil, nil, nil, nil, nil}, {}
          for _, name in ipairs(set.changed) do
            local v = set.fields[name]
            if v then
              values[#values + 1] = name
              values[#values + 1] = v
            else
              gone[#gone + 1] = name
            end
          end
          for i = 1, #values, 4000 do call('HSET', set.key, unpack(values, i, min(i + 3999, #values))) end
          for i = 1, #gone, 4000 do call('HDEL', set.key, unpack(gone, i, min(i + 3999, #gone))) end
          -- The hash lives for as long as its last hold matters, and up to half a
          -- hold more, so that few changes need a PEXPIRE.
          local half = set.hold / 2
          if virtual >= 0 or not set.was or floor(set.was / half) ~= floor(set.newest / half) then
            call('PEXPIRE', set.key, millis(set.life + half))
            set.was = set.newest
          end
          set.changed = {}
        end
      end
    end,
  }
end

local hits, seen, twice, atomic, held = {}, {}, false, false, false
local k, a = 1, 2
while k <= #KEYS do
  local key, flags, h = KEYS[k], ARGV[a + 4] + 0, nil
  if flags < 8 then
    h = {
      key = key, kind = kinds[ARGV[a]], op = ARGV[a + 1], text = ARGV[a + 2], amount = ARGV[a + 2] + 0, max = ARGV[a + 3] + 0, flags = flags,
      ttl = ARGV[a + 5], period = ARGV[a + 6] + 0, min = ARGV[a + 7] + 0, rest = a + 8,
    }
    a = a + 12
  else
    h = {
      key = key, kind = kinds.h, under = ARGV[a] ~= 'n' and kinds[ARGV[a]], ask = ARGV[a + 1], op = 'l', amount = 0, units = ARGV[a + 2] + 0, max = ARGV[a + 3] + 0,
      flags = flags % 8, ttl = ARGV[a + 5], period = ARGV[a + 6] + 0, min = 0, rest = a + 8,
      release = flags >= 16, id = ARGV[a + 12], hold = ARGV[a + 13] + 0, keep = ARGV[a + 14] + 0, start = ARGV[a + 15] + 0, stop = ARGV[a + 16] + 0,
    }
    if ARGV[a] ~= 'n' then k = k + 1 end
    h.set, held, a = KEYS[k], true, a + 17
  end
  k = k + 1
  hits[#hits + 1] = h
  twice = twice or seen[key]
  seen[key] = true
  atomic = atomic or flags % 4 >= 2
end

-- after adds to the state what the verdict needs of that behind the hit.
local function after(h, s, over)
  local kind, counter = h.under or h.kind, s.counter or s
  if h.set then h.kind.foresee(s, h, over) end
  if kind.after then
    counter.add = s.add
    kind.after(counter, h)
  end
end
-- run does what h asks for, and returns whether it is over and what it found.
local function run(h)
  local s = h.kind.look(h)
  local over, add, a, b = h.kind.judge(s, h)
  s.add = add or 0
  if add ~= 0 or s.change then h.kind.write(s, h, add, a, b) end
  after(h, s, over)
  return over, s
end

-- First all hits are tried. With each key there once, nobody changes what others
-- find, and looking is enough; else they are charged, and taken back when one
-- refuses. Holds expire in any case.
local vetoed, tried, saved = false, {}, {}
if atomic then
  if held then
    for _, h in ipairs(hits) do
      if h.set then h.kind.look(h) end
    end
  end
  if twice then
    if held then kinds.h.flush() end
    for key in pairs(seen) do
      local kind = call('TYPE', key).ok
      if kind ~= 'hash' then
        saved[#saved + 1] = {key, kind, call('PTTL', key), kind == 'list' and call('LRANGE', key, 0, -1) or kind == 'string' and call('GET', key)}
      end
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
    for name in pairs(held and kinds.h.sets or {}) do kinds.h.sets[name] = nil end
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

local reply, n = {vetoed and 1 or 0, now, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil}, 2
local function put(h, s)
  local counter = s.counter or s
  for i = 1, 5 do reply[n + i] = counter[i] or 0 end
  n = n + 5
  if not h.set then return end
  for i = 1, 8 do reply[n + i] = s[i] end
  n = n + 8
  for i = 1, 3 * s[3] do reply[n + i] = s.ends[i] end
  n = n + 3 * s[3]
end
for i, h in ipairs(hits) do
  local over, s
  if vetoed and h.flags % 4 >= 2 then
    if h.set then
      if h.ask == 'r' or h.ask == 'f' then h.units = 0 end
      h.ask = 'l'
    else
      if h.op == 'r' or h.op == 'f' then h.amount = 0 end
      h.op = 'l'
    end
    over, s = run(h)
    over = tried[i][1]
  elseif twice and atomic and not vetoed then
    over, s = tried[i][1], tried[i][2]
  else
    over, s = run(h)
  end
  n = n + 1
  reply[n] = over and 1 or 0
  put(h, s)
  if vetoed and h.flags % 4 >= 2 then put(h, tried[i][2]) end
end
if held then kinds.h.flush() end
return reply
