-- fixed_window: a number of units. The key names the window.
--
--   domain_user_7_1767225600   "3"   3 units since 2026-01-01 00:00
local function fixed_window()
  return {
    name = 'fixed_window',
    look = function(h) return {tonumber(read(h.key, '^%-?%d+$') or 0)} end,
    judge = function(s, h) return judge_count(s[1], h) end,
    write = function(s, h, add)
      if add < 0 then
        call('DECRBY', h.key, text(-add))
      elseif call('INCRBY', h.key, h.text or text(h.amount)) == h.amount
        -- A key that does not name its period may belong to a shorter one.
        or not h.key:find('|fw:', 1, true) and call('PTTL', h.key) * 1000 < h.period then
        call('EXPIRE', h.key, h.ttl)
      end
    end,
  }
end

-- first_hit_state returns {count, end}. An end more than a period ahead comes from a clock that was set back: then it
-- is a period ahead.
local function first_hit_state(h, count, window_end)
  local latest = now + h.period
  return {count, min(window_end, latest), ahead = window_end > latest}
end

local function judge_first_hit(s, h)
  local over, add = judge_count(s[1], h, max_count - s[1])
  if is_late(h, s[2]) then add = 0 end
  return over, corrects(s, add)
end

-- first_hit_window: "count end", the end in µs since 1970.
--
--   {domain_user_7_}|fh:60   "3 1767225612500000"   3 units in a window that ends at 2026-01-01 00:00:12.5
local function first_hit_window()
  return {
    name = 'first_hit_window',
    look = function(h)
      local count, window_end = read(h.key, '^(%d+) (%d+)$')
      if not count or tonumber(window_end) <= now then return {0, 0} end
      return first_hit_state(h, tonumber(count), tonumber(window_end))
    end,
    judge = judge_first_hit,
    write = function(s, h, add)
      local window_end = s[2]
      if window_end == 0 then window_end = now + h.period end
      call('SET', h.key, text(s[1] + (add or 0)) .. ' ' .. text(window_end), 'PX', millis(window_end - now))
    end,
  }
end

-- divvy_window: a first_hit_window as Button's divvy keeps it: the units that are left. The key lives as long as the
-- window. A key that has lost its time to live would never end, so it gets one.
--
--   divvy:ip=*:10.0.0.1:10:60   "7", PTTL 12500   3 of 10 units, in a window that ends in 12.5 s
local function divvy_window()
  return {
    look = function(h)
      local left = tonumber(read(h.key, '^%-?%d+$') or '')
      if not left then return {0, 0} end
      local ms = call('PTTL', h.key)
      if ms < 0 then
        ms = h.period / 1000
        if h.op ~= 'look' then call('PEXPIRE', h.key, text(ms)) end
      end
      return first_hit_state(h, max(h.max - left, 0), now + ms * 1000)
    end,
    judge = judge_first_hit,
    write = function(s, h, add)
      local window_end = s[2]
      if window_end == 0 then window_end = now + h.period end
      call('SET', h.key, text(h.max - s[1] - (add or 0)), 'PX', millis(window_end - now))
    end,
  }
end
