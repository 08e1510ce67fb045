package redis

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/testbed/redistest"
)

// The examples of layouts in the scripts are what the scripts write; TestDivvyKeys has those of divvy. Replicas of two
// releases may share a Redis, so a layout cannot change.
func TestLayouts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	store := open(t, Config{Addr: server.Addr})
	hold := func(id string) algorithm.HoldID { return algorithm.HoldID([]byte(strings.Repeat(id, 16))) }
	type hit struct {
		at     time.Duration // since epoch
		amount uint64
		op     algorithm.Op
		id     algorithm.HoldID
	}
	for _, tt := range []struct {
		file  string // the file that has the example
		limit algorithm.Limit
		hits  []hit
		read  []any // the command that reads the key
		want  string
	}{
		{
			file: "window.lua", limit: algorithm.Limit{Max: 10, Period: time.Minute}, hits: []hit{{amount: 3}},
			read: []any{"GET", "domain_user_7_1767225600"}, want: "3",
		},
		{
			file: "window.lua", limit: algorithm.Limit{Kind: algorithm.FirstHitWindow, Max: 10, Period: time.Minute},
			hits: []hit{{at: -47500 * time.Millisecond, amount: 3}},
			read: []any{"GET", "{domain_user_7_}|fh:60"}, want: "3 1767225612500000",
		},
		{
			file: "sliding.lua", limit: algorithm.Limit{
				Kind: algorithm.SlidingWindowCounter, Max: 10,
				Period: time.Minute,
			},
			hits: []hit{{at: -10 * time.Second, amount: 8}, {at: 50 * time.Second, amount: 3}},
			read: []any{"GET", "{domain_user_7_}|sc:60"}, want: "1767225600000000 8 3",
		},
		{
			file: "sliding.lua", limit: algorithm.Limit{Kind: algorithm.SlidingWindow, Max: 10, Period: time.Minute},
			hits: []hit{
				{at: -30 * time.Second, amount: 4},
				{at: 10 * time.Second, amount: 1},
				{at: 30 * time.Second, amount: 2},
			},
			read: []any{"LRANGE", "{domain_user_7_}|sl:60", "0", "-1"},
			want: "[1767225630000000:7 1767225610000000:5 1767225570000000:4]",
		},
		{
			file: "gcra.lua", limit: algorithm.Limit{
				Kind: algorithm.GCRA, Max: 2_000_000, Period: time.Second,
				Burst: 1_000_000,
			},
			hits: []hit{{amount: 400_001}},
			read: []any{"GET", "{domain_user_7_}|gc:1"}, want: "31536000200000.500",
		},
		{
			file: "gcra.lua", limit: algorithm.Limit{
				Kind: algorithm.GCRA, Max: 2_000_000, Period: time.Second, Burst: 1_000_000,
				MinInterval: 100 * time.Millisecond,
			},
			hits: []hit{{amount: 400_001}},
			read: []any{"GET", "{domain_user_7_}|gc:1"}, want: "31536000200000.500 31536000000000",
		},
		{
			file: "holds.lua", limit: algorithm.Limit{
				Kind: algorithm.Concurrency, Max: 10, Period: time.Minute,
				Hold: time.Minute,
			},
			hits: []hit{
				{at: 5 * time.Second, amount: 2, id: hold("b")},
				{at: 10 * time.Second, amount: 6, id: hold("a")},
				{at: 12 * time.Second, op: algorithm.Refund, id: hold("b")},
			},
			read: []any{"EVAL", readHash, "1", "{domain_user_7_}|co"},
			want: `0000000001 06474846b8d680<a>
<a> 000000000100000000000006
<b> 06474846d75b000000000000000000000000
d 06474846d75b00<b>
m 06474846d75b0006474846b8d680064748466c8b4006474846d75b00000000000000000000000000000600000100000000010000000002000000000000000001`,
		},
	} {
		server.Do(t, "FLUSHALL")
		for _, hit := range tt.hits {
			h := backend.Hit{
				Key: []byte("domain_user_7_"), Limit: &tt.limit, Amount: hit.amount, Op: hit.op,
				HoldID: hit.id,
			}
			b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: epoch.Add(hit.at)}
			if err := store.Take(t.Context(), &b); err != nil || b.FirstErr() != nil || b.Verdicts[0].Over {
				t.Fatal(err, b.FirstErr(), b.Verdicts[0])
			}
		}
		got := fmt.Sprint(server.Do(t, tt.read...))
		if got != tt.want {
			t.Errorf("%s, %v: %v is\n%s\nwant\n%s", tt.file, tt.limit.Kind, tt.read, got, tt.want)
		}
	}
}

// readHash returns the fields of a hash with their values, sorted: ids as <a>, other names and values in hexadecimal.
const readHash = `
local function hex(s) return (s:gsub('.', function(c) return string.format('%02x', c:byte()) end)) end
local function show(s)
  local id = s:match('(%a)%1%1%1%1%1%1%1%1%1%1%1%1%1%1%1$')
  if id then return hex(s:sub(1, -17)) .. '<' .. id .. '>' end
  if s:match('^%a$') then return s end
  return hex(s)
end
local lines, values = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #values, 2 do lines[#lines + 1] = show(values[i]) .. ' ' .. show(values[i + 1]) end
table.sort(lines)
return table.concat(lines, '\n')`
