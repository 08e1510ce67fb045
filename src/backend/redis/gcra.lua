-- gcra: "TAT", the theoretical arrival time in µs since 2025 with three decimals, and with a minimum interval behind a
-- blank the last hit in whole µs since 2025. See GCRAState in package algorithm. A full bucket has no key.
--
--   {domain_user_7_}|gc:1   "31536000200000.500"                  units of 0.2000005 s are used at 2026-01-01 00:00
--   {domain_user_7_}|gc:1   "31536000200000.500 31536000000000"   the same, and the last hit was at 00:00
--
-- The state is {TAT in µs, its ns, last hit}. Differences to now are pairs {µs, ns}. judge returns behind add the new
-- TAT as a difference, and the last hit.
local function gcra()
  local year_2025 = 1735689600000000
  local function sum(a, b)
    local us, ns = a[1] + b[1], a[2] + b[2]
    if ns >= 1000 then return {us + 1, ns - 1000} end
    return {us, ns}
  end
  -- difference returns a - b, or 0 if b is larger.
  local function difference(a, b)
    local us, ns = a[1] - b[1], a[2] - b[2]
    if ns < 0 then us, ns = us - 1, ns + 1000 end
    if us < 0 then return {0, 0} end
    return {us, ns}
  end
  local function pair(i) return {ARGV[i] + 0, ARGV[i + 1] + 0} end
  local function is_above(a, b) return a[1] > b[1] or a[1] == b[1] and a[2] > b[2] end
  -- refill returns the time in which units come back, where ARGV has the time of one unit. It is exact, or longer than
  -- any tolerance.
  local function refill(h, units)
    local us, ns, thousands = ARGV[h.bucket] + 0, ARGV[h.bucket + 1] + 0, floor(units / 1000)
    local rest = ns * (units - thousands * 1000)
    us = us * units + ns * thousands + floor(rest / 1000)
    if us >= century then return {century, 1} end
    return {us, rest % 1000}
  end
  return {
    name = 'gcra',
    look = function(h)
      local us, ns, rest = read(h.key, '^(%-?%d+)%.(%d%d%d)(.*)$')
      if not us then return {missing, 0, missing} end
      local last = tonumber(string.match(rest, '^ (%-?%d+)$') or '')
      return {tonumber(us) + year_2025, tonumber(ns), last and last + year_2025 or missing}
    end,
    judge = function(s, h)
      local asks = h.op == 'charge' or h.op == 'look'
      if h.max == 0 then return asks, 0 end
      local increment, tolerance = h.set and refill(h, h.amount) or pair(h.bucket), pair(h.bucket + 2)
      local tat, furthest = {0, 0}, tolerance
      if h.count_blocked or h.keeps_debt then furthest = {century, 0} end
      if s[1] ~= missing and s[1] >= now then tat = {s[1] - now, s[2]} end
      if is_above(tat, furthest) then tat = furthest end
      local next = sum(tat, increment)
      local over = is_above(next, tolerance)
      if is_above(next, furthest) then next = furthest end
      local add = h.amount > 0 and 1 or 0
      local last = s[3]
      if last ~= missing then last = min(last, now) end
      if h.op == 'refund' then
        local refunded = difference(tat, increment)
        if is_above(tat, refunded) then return false, 1, refunded, last end
      end
      if h.op == 'force' and add > 0 then return false, add, next, now end
      over = asks and (over or last ~= missing and h.min_interval > 0 and now - last < h.min_interval)
      if h.op == 'charge' and add > 0 and (not over or h.count_blocked) then return over, add, next, now end
      -- After the clock was set back, the wait begins now.
      if s[1] ~= missing and (s[3] > now or is_above({s[1] - now, s[2]}, furthest)) then
        if s[1] < now then tat = {s[1] - now, s[2]} end
        return over, nil, tat, last
      end
      return over, 0
    end,
    write = function(s, h, add, next, last)
      local tat = now + next[1] - year_2025
      if next[1] == 0 and next[2] == 0 then tat = -year_2025 end -- full, whatever the clock says
      local value = text(tat) .. string.format('.%03d', next[2])
      local wait = next[1] + (next[2] > 0 and 1 or 0)
      if last ~= missing and last + h.min_interval > now then
        value = value .. ' ' .. text(last - year_2025)
        wait = max(wait, last + h.min_interval - now)
      end
      if wait <= 0 then
        call('DEL', h.key)
      else
        call('SET', h.key, value, 'PX', millis(wait))
      end
    end,
  }
end

-- gcra_with_debt: a gcra that keeps debt beyond its burst, which was charged with a larger one. The layout is the same.
local function gcra_with_debt()
  local kind = gcra()
  local judge = kind.judge
  kind.judge = function(s, h)
    h.keeps_debt = true
    return judge(s, h)
  end
  return kind
end
