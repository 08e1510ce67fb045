-- Decides the hits in KEYS and ARGV, and returns the reply; script.go describes both.

-- constructors has the algorithms by the letters of scriptKinds in command.go. A call defines only what its hits need:
-- defining a function costs time in each call.
local constructors = {
  w = fixed_window, f = first_hit_window, d = divvy_window, c = sliding_window_counter, l = sliding_window,
  g = gcra, k = gcra_with_debt,
}
local operations = {c = 'charge', l = 'look', r = 'refund', f = 'force'} -- by the letters of scriptOps
local kinds, holds = {}, nil
local function kind_of(letter)
  local kind = kinds[letter]
  if not kind then
    kind = constructors[letter]()
    kinds[letter] = kind
  end
  return kind
end

local hits, seen, twice, atomic = {}, {}, false, false
local k, a = 1, 2
while k <= #KEYS do
  local key, letter, flags, h = KEYS[k], ARGV[a], ARGV[a + 4] + 0, nil
  -- bucket is where in ARGV the increment and the tolerance of gcra are. Times are in µs, ttl in s. An algorithm without
  -- a min_interval has window in its place: the end of the window that counted the units of a refund, or 0.
  if flags < 8 then
    h = {
      key = key, kind = kind_of(letter), op = operations[ARGV[a + 1]], text = ARGV[a + 2], amount = ARGV[a + 2] + 0,
      max = ARGV[a + 3] + 0, ttl = ARGV[a + 5], period = ARGV[a + 6] + 0, min_interval = ARGV[a + 7] + 0,
      window = ARGV[a + 7] + 0, bucket = a + 8,
    }
    a = a + 12
  else
    holds = holds or with_holds()
    h = {
      key = key, kind = holds, under = letter ~= 'n' and kind_of(letter), ask = operations[ARGV[a + 1]], op = 'look',
      amount = 0, units = ARGV[a + 2] + 0, max = ARGV[a + 3] + 0, ttl = ARGV[a + 5], period = ARGV[a + 6] + 0,
      min_interval = 0, window = 0, bucket = a + 8, release = flags >= 16, id = ARGV[a + 12], hold = ARGV[a + 13] + 0,
      keep = ARGV[a + 14] + 0, start = ARGV[a + 15] + 0, stop = ARGV[a + 16] + 0,
    }
    if h.id == string.rep('\255', 16) then h.id, h.unnamed = '', true end
    if letter ~= 'n' then k = k + 1 end
    h.set, a = KEYS[k], a + 17
  end
  h.count_blocked, h.atomic, h.can_veto = flags % 2 == 1, flags % 4 >= 2, flags % 8 < 4
  k = k + 1
  hits[#hits + 1] = h
  twice = twice or seen[key]
  seen[key] = true
  atomic = atomic or h.atomic
end

-- run does what h asks for, and returns whether it is over and what it found.
local function run(h)
  local kind = h.kind
  local s = kind.look(h)
  local over, add, a, b = kind.judge(s, h)
  s.add = add or 0
  if add ~= 0 or s.change then kind.write(s, h, add, a, b) end
  local counter = s
  if h.set then
    kind.foresee(s, h, over)
    kind, counter = h.under, s.counter
    counter.add = s.add
  end
  if kind and kind.after then kind.after(counter, h) end
  return over, s
end

-- First all hits of a group are tried. If each key is there once, no hit changes what others find, and looking is
-- enough. Otherwise they are charged, and what they changed is restored if one refuses. Holds expire in any case.
local vetoed, tried, saved = false, {}, {}
if atomic then
  if holds then
    for _, h in ipairs(hits) do
      if h.set then holds.look(h) end
    end
  end
  if twice then
    if holds then holds.flush() end
    for key in pairs(seen) do
      local kind, value = call('TYPE', key).ok, nil
      if kind ~= 'hash' then
        if kind == 'list' then value = call('LRANGE', key, 0, -1) end
        if kind == 'string' then value = call('GET', key) end
        saved[#saved + 1] = {key = key, kind = kind, ttl = call('PTTL', key), value = value}
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
    if over and h.can_veto then vetoed = true end
  end
  if twice and vetoed then
    for name in pairs(holds and holds.sets or {}) do holds.sets[name] = nil end
    for _, was in ipairs(saved) do
      call('DEL', was.key)
      if was.kind == 'list' then
        for _, m in ipairs(was.value) do call('RPUSH', was.key, m) end
      elseif was.kind == 'string' then
        call('SET', was.key, was.value)
      end
      if was.kind ~= 'none' and was.ttl > 0 then call('PEXPIRE', was.key, text(was.ttl)) end
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
  local refused = vetoed and h.atomic
  if refused then
    if h.set then
      if h.ask == 'refund' or h.ask == 'force' then h.units = 0 end
      h.ask = 'look'
    else
      if h.op == 'refund' or h.op == 'force' then h.amount = 0 end
      h.op = 'look'
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
  if refused then put(h, tried[i][2]) end
end
if holds then holds.flush() end
return reply
