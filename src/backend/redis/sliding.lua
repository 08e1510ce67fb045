-- sliding_window_counter: "start previous current", the start of the current window in µs since 1970, and the units of
-- the previous and the current one.
--
--   {domain_user_7_}|sc:60   "1767225600000000 8 3"   3 units since 2026-01-01 00:00, and 8 in the minute before
--
-- At 00:00:15 three quarters of the 8 count, together 9.
local function sliding_window_counter()
  -- product returns a*b, exactly for numbers below 2^52: as three parts, the lower two of 26 bits.
  local half = 67108864
  local function product(a, b)
    local a1, b1 = floor(a / half), floor(b / half)
    local a0, b0 = a - a1 * half, b - b1 * half
    local low = a0 * b0
    local mid = a1 * b0 + a0 * b1 + floor(low / half)
    return {a1 * b1 + floor(mid / half), mid % half, low % half}
  end
  -- fits says whether a*b <= c*d.
  local function fits(a, b, c, d)
    local p, q = product(a, b), product(c, d)
    for i = 1, 3 do
      if p[i] ~= q[i] then return p[i] < q[i] end
    end
    return true
  end
  return {
    look = function(h)
      local start, previous, current = read(h.key, '^(%d+) (%d+) (%d+)$')
      local this = now - now % h.period
      start, previous, current = tonumber(start or 0), tonumber(previous or 0), tonumber(current or 0)
      if previous == 0 and current == 0 or this > start + h.period then return {this, 0, 0} end
      if this == start + h.period then return {this, current, 0} end
      -- The clock was set back: all that counts is of its window.
      if this < start then return {this, 0, min(previous + current, max_count), ahead = true} end
      return {start, previous, current}
    end,
    judge = function(s, h)
      if is_late(h, s[1] + h.period) then return false, corrects(s, 0) end
      if h.op == 'refund' then return false, corrects(s, -min(s[3], h.amount)) end
      local add = min(h.amount, max_count - s[3])
      if h.op == 'force' then return false, corrects(s, add) end
      local room = h.max - s[3] - h.amount
      local over = room < 0 or h.max == 0 or not fits(s[2], h.period - (now - s[1]), room, h.period)
      if h.op == 'look' or over and not h.count_blocked then add = 0 end
      return over, corrects(s, add)
    end,
    write = function(s, h, add)
      local value = text(s[1]) .. ' ' .. text(s[2]) .. ' ' .. text(s[3] + (add or 0))
      call('SET', h.key, value, 'PX', millis(s[1] + 2 * h.period - now))
    end,
  }
end

-- sliding_window: a list of marks "time:total", newest first. The total has the units of all hits up to the time, in µs
-- since 1970. The last mark is the one before the window, or "0:0": the units in the window are the newest total minus
-- the total of this one.
--
--   {domain_user_7_}|sl:60   "1767225630000000:7" "1767225610000000:5" "1767225570000000:4"
--
-- At 2026-01-01 00:00:45 the mark of 23:59:30 has left the window: 3 units are in it, 1 of 00:00:10 and 2 of 00:00:30.
--
-- The state is {units, newest hit, newest hit behind the charge, which hit must leave the window to make room for the
-- amount, and which for one unit}. judge adds units as for the other algorithms.
local function sliding_window()
  local function mark(key, i)
    local at, total = string.match(call('LINDEX', key, i) or '', '^(%d+):(%d+)$')
    return tonumber(at), tonumber(total)
  end
  -- seek finds the oldest mark that is not before the time least or, with by_total, whose total is not below least. It
  -- returns its place, counted from the end, and its time. This is mostly one of the oldest marks, so the search starts
  -- there, with steps that double.
  local function seek(key, least, by_total)
    local before, place, step = 1, 2, 1
    local at, total = mark(key, -place)
    while at and (by_total and total or at) < least do
      before, place, step = place, place + step, 2 * step
      at, total = mark(key, -place)
    end
    while place - before > 1 do
      local middle = floor((before + place) / 2)
      local t, sum = mark(key, -middle)
      if t and (by_total and sum or t) < least then
        before = middle
      else
        place, at = middle, t
      end
    end
    return place, at or missing
  end
  -- leaving returns which hit must leave the window for an amount to pass, or missing if none must.
  local function leaving(s, h, amount)
    if amount > h.max or s[1] + (s.add or 0) + amount <= h.max then return missing end
    local _, total = mark(h.key, 0)
    local _, at = seek(h.key, total - h.max + amount, true)
    return min(at, now)
  end
  -- gather replaces all marks that are ahead of the clock by one of now.
  local function gather(s, h)
    call('LTRIM', h.key, 1 - seek(h.key, now + 1), -1)
    if call('LLEN', h.key) > 1 and mark(h.key, 0) == now then call('LPOP', h.key) end
    call('LPUSH', h.key, text(now) .. ':' .. text(s.total))
  end
  local function live(h) call('PEXPIRE', h.key, millis(max(h.period, h.min_interval))) end
  -- refund takes the newest units away, but none of the mark before the window.
  local function refund(s, h, units)
    local left = s.total - units
    local _, base = mark(h.key, -1)
    if left <= base then
      call('LTRIM', h.key, -1, -1)
      return
    end
    local place, at = seek(h.key, left, true)
    call('LTRIM', h.key, -place, -1)
    call('LSET', h.key, 0, text(at) .. ':' .. text(left))
  end
  -- restart makes the totals count from the mark before the window, or from max_count below total.
  local function restart(h, total)
    local _, base = mark(h.key, -1)
    base = max(base, total - max_count)
    local marks = call('LRANGE', h.key, 0, -1)
    call('DEL', h.key)
    for _, m in ipairs(marks) do
      local at, sum = string.match(m, '^(%d+):(%d+)$')
      call('RPUSH', h.key, at .. ':' .. text(max(sum - base, 0)))
    end
  end
  return {
    name = 'sliding_window',
    look = function(h)
      local s = {0, missing, missing, missing, missing, drop = 0, total = 0, size = call('LLEN', h.key)}
      if s.size == 0 then return s end
      local newest, total = mark(h.key, 0)
      if s.size > 1 then s[2], s.ahead = min(newest, now), newest > now end
      s.total = total
      local place = seek(h.key, now - h.period + 1)
      local _, base = mark(h.key, 1 - place)
      if place > 2 and h.min_interval > h.period then place = seek(h.key, now - h.min_interval + 1) end
      s.drop = place - 2
      s[1] = total - base
      return s
    end,
    judge = function(s, h)
      local used = s[1]
      if h.op == 'refund' then return false, corrects(s, -min(used, h.amount)) end
      local add = h.amount
      if h.op == 'force' then return false, corrects(s, add) end
      local over = exceeds(h, used + h.amount) or s[2] ~= missing and now - s[2] < h.min_interval
      if h.op == 'look' or over and not h.count_blocked then add = 0 end
      return over, corrects(s, add)
    end,
    write = function(s, h, add)
      if s.ahead then gather(s, h) end
      if not add then return live(h) end
      if add < 0 then return refund(s, h, -add) end
      if s.size == 0 then call('LPUSH', h.key, '0:0') end
      if s.drop > 0 then call('LTRIM', h.key, 0, -1 - s.drop) end
      local total = s.total + add
      if s[2] == now then call('LPOP', h.key) end -- hits of one instant are one mark
      call('LPUSH', h.key, text(now) .. ':' .. text(total))
      -- Forget what matters to no hit: more than the limit came after it.
      local place = seek(h.key, total - h.max, true)
      if place > 2 then call('LTRIM', h.key, 0, 1 - place) end
      if total > 1000000000000000 then restart(h, total) end -- before doubles get coarse
      live(h)
    end,
    leaving = leaving,
    after = function(s, h)
      s[3] = missing
      if call('LLEN', h.key) < 2 then return end
      s[3] = min(mark(h.key, 0), now)
      -- Of a limit with holds, h.amount has the units of open holds, too.
      local other = h.set and h.units or 1
      if h.max > 0 then s[5] = leaving(s, h, other) end
      s[4] = h.amount == other and s[5] or leaving(s, h, h.amount)
    end,
  }
end
