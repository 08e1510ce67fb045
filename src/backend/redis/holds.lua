-- Limits with holds: a counter of another algorithm, h.under, and a set of holds. concurrency has no h.under, nothing
-- but its holds. h.ask and h.units are the operation and the amount of the hit; h.op and h.amount are what it asks of
-- h.under.
--
-- The set is a hash. Its numbers are binary, big-endian. Times have 7 bytes, in µs since 1970; if the clock was set
-- back, the time of a set stays ahead of it by offset. Open holds have places, numbered in the order of their times. Its
-- fields:
--
--   m          the sums, see sums below
--   an id      of an open hold: its place (5 bytes) and its units (7);
--              of a hold that is done: since when, what was charged when it expired (7 bytes), its chunk (4)
--   5 bytes    a place: since when the hold there is open, and its id, or its units if it has no id;
--              or, at both ends of a gap of places that are empty, the place of the other end (5 bytes)
--   d          the newest holds that are done, in the order in which they became so: since when, and the id, of each
--   4 bytes    a chunk of older ones, which was d before. The numbers of chunks wrap
--
-- b reserved 2 units on 2026-01-01 at 00:00:05, a reserved 6 at 00:00:10, and b was released at 00:00:12:
--
--   a          place 1, 6 units                     0000000001 00000000000006
--   place 1    open since 00:00:10, a               06474846b8d680 <a>
--   b          done since 00:00:12, 0, chunk 0      06474846d75b00 00000000000000 00000000
--   d          00:00:12, b                          06474846d75b00 <b>
--   m          1 open hold with 6 units, first place 1, next place 2, 1 done
--
-- A set is changed in memory until flush. Where a table is made with nils, they are room for what comes: a table that
-- grows costs time.
local function with_holds()
  local pack, numbers = struct.pack, struct.unpack
  local most_open, most_done = 100000, 16384
  local most_seen = 32 -- so many of the oldest open holds are in a reply
  local most_searched = 1000 -- so many open holds are searched for one without an id
  -- newest, opened, oldest, done_oldest, offset, units, count, first, next, done_first, chunks, dones
  local sums, sets = '>I7I7I7I7I7I7I3I5I5I4I2I3', {}

  -- get returns a field of the hash, or false.
  local function get(set, name)
    local v = set.fields[name]
    if v == nil then
      v = call('HGET', set.key, name)
      set.fields[name] = v
    end
    return v
  end
  -- put changes a field. false deletes it.
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
    -- remove takes an open hold of so many units out of its place. The first place may be in a gap then, but not the
    -- last one.
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
        local emptied = {pack('>I5', first), before, here, behind, pack('>I5', last)}
        for _, name in ipairs(emptied) do put(set, name, false) end
        set.next = first
        return
      end
      -- The place joins the gaps beside it. Their ends there go, unless they are ends of the gap that is there now.
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
    -- finish makes a hold done, of which charged units were charged when it expired. A small set has small chunks, as a
    -- value above 64 bytes would make it large.
    local function finish(set, id, at, charged)
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
      put(set, id, since .. pack('>I7', charged) .. chunk_name(set.done_first + set.chunks))
      put(set, 'd', newest .. since .. id)
      set.dones, set.newest = set.dones + 1, max(set.newest, at)
    end
    -- forget_in_chunk removes the id of a hold that was done and gets another record from its chunk.
    local function forget_in_chunk(set, name, id)
      if name == chunk_name(set.done_first + set.chunks) then name = 'd' end
      local dones = get(set, name)
      for i = 8, #dones, 23 do
        if dones:sub(i, i + 15) == id then
          put(set, name, dones:sub(1, i - 1) .. string.rep('\0', 16) .. dones:sub(i + 16))
        end
      end
    end
    return remove, finish, forget_in_chunk, chunk_name
  end

  -- fetch reads the open holds at size places from place on, and returns the place behind them.
  local function fetch(set, place, size)
    local function read(names)
      local unread = {}
      for _, name in ipairs(names) do
        if set.fields[name] == nil then unread[#unread + 1] = name end
      end
      if #unread == 0 then return end
      local values = call('HMGET', set.key, unpack(unread))
      for i, name in ipairs(unread) do set.fields[name] = values[i] end
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

  -- expirer returns what is rarely asked for: a function that ends the holds that are open since last or before.
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
      if left == '' and name ~= 'd' then
        set.done_first, set.chunks = (set.done_first + 1) % 4294967296, set.chunks - 1
      end
    end
    -- charge charges units at the time of so many µs ago.
    local function charge(h, units, late)
      local clock = now
      now, h.op, h.amount = now - late, 'force', units
      local s = h.under.look(h)
      local _, add, a, b = h.under.judge(s, h)
      if add ~= 0 then h.under.write(s, h, add, a, b) end
      now = clock
    end
    -- The units of holds that have expired are charged at the time when they did. After the clock was set back, that
    -- time is not known.
    return function(set, h, last)
      local due, sum, size = set.now - h.hold, 0, 4
      while set.count > 0 and set.oldest <= last do
        local stop = fetch(set, set.first, size)
        repeat
          local item, at = oldest(set)
          if at > last then break end
          local units = units_of(set, item)
          h.expired = h.expired + 1
          if not h.release then
            h.charged = h.charged + units
            local late = set.stepped and 0 or due - at
            if h.under.name ~= 'fixed_window' then
              charge(h, units, late)
            elseif now - late >= h.start then
              sum = sum + units -- In a window the time does not matter.
            end
          end
          if #item == 23 then
            local id = item:sub(8)
            put(set, id, false)
            if not h.release then finish(set, id, at + h.hold, units) end
          end
          remove(set, set.first, units)
        until set.count == 0 or set.first >= stop
        size = min(size * 2, 1024)
      end
      if sum > 0 then charge(h, sum, 0) end
      -- To forget some at a time is cheaper than to forget each in time. Virtual time may go back, and must not find
      -- again what was forgotten.
      if virtual >= 0 then
        while set.dones > 0 and set.done_oldest <= due do forget(set, due) end
      elseif set.dones > 0 and set.done_oldest <= due - h.hold / 4 then
        forget(set, due)
      end
      while set.dones >= most_done do forget(set, set.newest) end
    end
  end

  -- load reads the sums, the hold of h, and the newest holds that are done if h may end a hold.
  local function load(h)
    local id, values = h.id, nil
    if h.ask == 'refund' or h.ask == 'force' then
      values = call('HMGET', h.set, 'm', id, 'd')
    else
      values = call('HMGET', h.set, 'm', id)
    end
    local stored = values[1]
    local newest, opened, oldest_since, done_oldest, offset, units, count, first, next, done_first, chunks, dones =
      numbers(sums, stored or string.rep('\0', 64))
    local set = {
      key = h.set, hold = h.hold, life = h.hold + h.keep, now = now + offset,
      fields = {[id] = values[2], d = values[3]}, changed = {nil, nil, nil, nil, nil, nil, nil, nil},
      was = stored and newest, newest = newest, opened = opened, oldest = oldest_since, done_oldest = done_oldest,
      offset = offset, units = units, count = count, first = first, next = next,
      done_first = done_first, chunks = chunks, dones = dones, large = count + dones > 16,
    }
    if set.now < newest then -- The time of a set never goes back.
      set.offset, set.now, set.stepped = offset + newest - set.now, newest, true
      put(set, 'm', true)
    end
    sets[h.set] = set
    return set
  end

  -- oldest_unnamed returns the place and the units of the oldest open hold without an id, or nil.
  local function oldest_unnamed(set)
    local place, stop, size = set.first, set.first, 4
    if set.count == 0 then return end
    while place < set.next and place - set.first < most_searched do
      if place >= stop then
        stop, size = fetch(set, place, size), min(size * 2, 256)
      end
      local item = get(set, pack('>I5', place))
      if #item == 14 then return place, (numbers('>I7', item, 8)) end
      place = #item == 5 and numbers('>I5', item) + 1 or place + 1
    end
  end

  return {
    sets = sets,
    -- look removes the holds that have expired first. The state has what the verdict needs of the holds, in the order
    -- of the reply: the units and the number of open holds, how many of them s.ends describes, when the newest expires;
    -- of the hold of h whether it is unknown (0), open (1) or done (2), and its units; and how many have just expired,
    -- and the units charged for them.
    look = function(h)
      local set, id = sets[h.set] or load(h), h.id
      if not h.expired then
        h.expired, h.charged = 0, 0
        local due = set.now - h.hold
        -- A hit that was sent in the last fixed window knows no counter of this one, in which holds may have
        -- expired: the next hit charges them.
        local last = h.stop > 0 and min(due, h.stop - 1 + set.offset - h.hold) or due
        local forgets = set.dones > 0 and set.done_oldest <= due or set.dones >= most_done
        if forgets or set.count > 0 and set.oldest <= last then expirer()(set, h, last) end
      end
      local record, known, units, place, chunk = id ~= '' and get(set, id), 0, 0, nil, nil
      if h.unnamed and (h.ask == 'force' or h.ask == 'refund') then
        place, units = oldest_unnamed(set)
        known, units = place and 1 or 0, units or 0
      elseif record and #record == 12 then
        place, units = numbers('>I5I7', record)
        known = 1
      elseif record then
        local since, charged = numbers('>I7I7', record)
        chunk = record:sub(15)
        if since + h.hold > set.now then known, units = 2, charged end
      end
      return {
        set.units, set.count, 0, 0, known, units, h.expired, h.charged,
        set = set, counter = h.under and h.under.look(h) or {}, place = place, chunk = chunk, change = false, add = 0,
      }
    end,
    -- judge decides as HeldOutcome of package algorithm. s.change is what happens to the hold: 'open', 'close' or
    -- false.
    judge = function(s, h)
      local set, under, named, op = s.set, h.under, h.unnamed or h.id ~= '', nil
      local known, charged = s[5], s[6]
      local asks, over, add, a, b = h.ask == 'charge' or h.ask == 'look', false, 0, nil, nil
      -- A look at the counter corrects it if the clock was set back.
      h.op, h.amount, s.change = 'look', asks and known == 0 and set.units + h.units or 0, false
      if under then over, add, a, b = under.judge(s.counter, h) else over = exceeds(h, h.amount) end
      h.amount = h.units
      if asks then
        if known > 0 then return false, add, a, b end
        local opens = h.units > 0 and (named or not under)
        over = over or opens and set.count >= most_open
        if over or h.ask == 'look' then return over, add, a, b end
        if opens then s.change = 'open' elseif not named and under then op = 'charge' end
      elseif not named and not under then
        if h.ask == 'force' and h.units > 0 and set.count < most_open then s.change = 'open' end
      elseif not named then
        op = h.ask
      elseif known < 2 or h.ask == 'force' and charged > 0 then
        s.change = 'close'
        if h.ask == 'force' and under then
          op = 'force'
          if known == 2 then h.amount = h.units - min(charged, h.units) end
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
        local remove, finish, forget_in_chunk = closer()
        if s.chunk then forget_in_chunk(set, s.chunk, id) end
        if s.change == 'close' then
          if s.place then remove(set, s.place, s[6]) end
          if not h.unnamed then finish(set, id, set.now, 0) end
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
    -- foresee adds to the state what the waits depend on: when the newest open hold expires, and the oldest of them:
    -- for each when it expires, its units and, where it is released from a sliding window, which hit must leave that as
    -- well.
    foresee = function(s, h, over)
      local set, under, ends = s.set, h.under, {}
      local under_name = under and under.name
      s.ends, s[4], h.amount = ends, set.opened + h.hold - set.now, h.units + set.units
      local chained = not h.release and (under_name == 'gcra' or under_name == 'first_hit_window') and set.count > 1
      if set.count == 0 or not over and not chained then return end
      local place, open, stop = set.first, set.units, set.first
      while place < set.next and s[3] < most_seen do
        if place >= stop then stop = fetch(set, place, most_seen) end
        local item = get(set, pack('>I5', place))
        if #item == 5 then
          place = numbers('>I5', item) + 1
        else
          local units, leaves = units_of(set, item), missing
          open = open - units
          if over and h.release and under_name == 'sliding_window' then
            leaves = under.leaving(s.counter, h, h.units + open)
          end
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
          local values, gone = {'m', '', nil, nil, nil, nil, nil, nil, nil, nil}, {}
          values[2] = pack(sums, set.newest, set.opened, set.oldest, set.done_oldest, set.offset, set.units,
            set.count, set.first, set.next, set.done_first, set.chunks, set.dones)
          -- Once it has had a value above 64 bytes, Redis finds the fields of the hash by their hashes.
          if is_large(set) and not set.large then values[2], set.large = values[2] .. values[2], true end
          set.fields.m = values[2]
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
          -- The hash lives for as long as its last hold matters, and up to half a hold more, so that few changes need
          -- a PEXPIRE.
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
