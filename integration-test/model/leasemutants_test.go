package model

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// leaseMutant is a mistake in a file of package leased: a piece of text that is there once is replaced.
type leaseMutant struct{ file, is, becomes string }

// fewLeaseMutants is how many leaseMutants are tried unless -during is set.
const fewLeaseMutants = 3

// TestLeaseMutants checks that the tests of package leased find each mistake in the arithmetic of leases.
func TestLeaseMutants(t *testing.T) {
	t.Parallel()
	mutants := leaseMutants
	if *during == 0 {
		mutants = mutants[:fewLeaseMutants]
	}
	atOnce := make(chan struct{}, 2)
	for i, m := range mutants {
		t.Run(fmt.Sprint(i, " ", m.file), func(t *testing.T) {
			t.Parallel()
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			m.mustBeFound(t)
		})
	}
}

// mustBeFound runs the tests of package leased with the mistake. Those of the hash table are left out: they take long.
func (m *leaseMutant) mustBeFound(t *testing.T) {
	path, err := filepath.Abs(filepath.Join("../../src/backend/leased", m.file))
	if err != nil {
		t.Fatal(err)
	}
	code := testfiles.Read(t, path)
	if n := strings.Count(string(code), m.is); n != 1 {
		t.Fatalf("%s has %q %d times, want once", m.file, m.is, n)
	}
	mutated, overlay := filepath.Join(t.TempDir(), m.file), filepath.Join(t.TempDir(), "overlay.json")
	writeFile(t, mutated, []byte(strings.Replace(string(code), m.is, m.becomes, 1)))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, overlay, replace)
	tests, err := harness.GoCommand(t.Context(), "test", "-overlay", overlay, "-count=1", "-vet=off", "-failfast",
		"-timeout=2m", "-skip=^(TestShard|TestBytesAre.*|TestLeasesMove.*|TestLarge.*)$", "ratelimit/src/backend/leased",
		"-seed=1")
	if err != nil {
		t.Fatal(err)
	}
	out, err := tests.CombinedOutput()
	switch found := strings.Contains(string(out), "--- FAIL") || strings.Contains(string(out), "panic: "); {
	case err == nil:
		t.Errorf("%q instead of %q is not found", m.becomes, m.is)
	case !found:
		t.Errorf("the tests do not run: %v\n%s", err, out)
	default:
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "--- FAIL") {
				t.Logf("%q instead of %q: %s", m.becomes, m.is, line)
			}
		}
	}
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	testfiles.Write(t, path, content)
}

// The first ones are tried most often.
var leaseMutants = []leaseMutant{
	{
		"lease.go",
		"n := min(uint32(min(amount, uint64(l.used))), maxUnits-l.held)",
		"n := min(uint32(amount), maxUnits-l.held)",
	},
	{"learn.go", "extra = a.amount - surplus - h.Amount", "extra = a.amount - surplus"},
	{
		"lease.go",
		"l.windowEnd, l.held, l.used, l.contendedAt, l.flags = v.WindowEnd, 0,",
		"l.windowEnd, l.used, l.contendedAt, l.flags = v.WindowEnd,",
	},

	// Use, and the end of units.
	{"lease.go", "at < l.end && at >= l.start()", "at >= l.start()"},
	{"lease.go", "at < l.end && at >= l.start()", "at <= l.end && at >= l.start()"},
	{"lease.go", "at < l.end && at >= l.start()", "at < l.end"},
	{"lease.go", "at < l.end && at >= l.start()", "at < l.end && at > l.start()"},
	{"lease.go", "if amount > l.usable(t) ||", "if amount > l.usable(t)+1 ||"},
	{"lease.go", "if amount > l.usable(t) ||", "if amount >= l.usable(t) ||"},
	{"lease.go", "if amount > l.usable(t) || amount == 0 && l.held == 0", "if amount > l.usable(t)"},
	{"lease.go", "l.held -= uint32(amount)", "l.held -= uint32(min(amount, 1))"},
	{"lease.go", "s.used = capped(uint64(s.used) + amount)", "s.used = capped(amount)"},
	{"lease.go", "l.held == 0 || l.contains(t)", "l.held == 0 || !l.contains(t)"},
	{"lease.go", "\tif l.limit.RefillsSteadily() {\n\t\tback = uint64(l.held)\n\t}", "\tback = uint64(l.held)"},
	{"lease.go", "\tif l.limit.RefillsSteadily() {\n\t\tback = uint64(l.held)\n\t}", ""},
	{"lease.go", "\tl.held = 0\n\treturn back", "\treturn back"},
	{"lease.go", "s.beforeThat, s.recent = approxAbove(s.recent), 0", "s.beforeThat = approxAbove(s.recent)"},
	{"lease.go", "return max(s.recent, s.beforeThat.units())", "return s.recent"},

	// Refunds.
	{"lease.go", "l.held, l.used = l.held+n, l.used-n", "l.held = l.held + n"},
	{"lease.go", "l.held, l.used = l.held+n, l.used-n", "l.used = l.used - n"},
	{
		"lease.go",
		"func (l lease) giveBack(amount uint64, t instant) uint64 {\n\tif !l.contains(t) {\n\t\treturn 0\n\t}",
		"func (l lease) giveBack(amount uint64, t instant) uint64 {",
	},
	{"learn.go", "l.used -= uint32(min(uint64(l.used), a.amount))", ""},
	{"store.go", "a.amount -= given", "_ = given"},
	{"store.go", "mayLease && !l.isContended() && l.end > 0 &&", "mayLease && l.end > 0 &&"},
	{"store.go", "mayLease && !l.isContended() && l.end > 0 &&", "!l.isContended() && l.end > 0 &&"},

	{"store.go", "l.end > 0 && uint64(l.taken) <= l.limit.Capacity() {", "l.end > 0 {"},

	// Replies.
	{"lease.go", "\tif asked.mono >= l.knownAt { // An", "\tif true { // An"},
	{"lease.go", "\t\tif l.end > 0 && asked.mono < l.knownAt {\n\t\t\treturn back + granted\n\t\t}\n", ""},
	{"lease.go", "isSame := l.end > 0 && v.WindowEnd == l.windowEnd", "isSame := l.end > 0"},
	{"lease.go", "isSame := l.end > 0 && v.WindowEnd == l.windowEnd", "isSame := false"},
	{"lease.go", "if asked.mono >= l.knownAt {\n\t\tl.knownAt, l.taken", "if true {\n\t\tl.knownAt, l.taken"},
	{"lease.go", "l.knownAt, l.taken = asked.mono, capped(v.After)", "l.taken = capped(v.After)"},
	{"lease.go", "= v.WindowEnd, 0, 0, 0, l.flags&isAskingFlag", "= v.WindowEnd, 0, l.used, 0, l.flags&isAskingFlag"},
	{
		"lease.go",
		"= v.WindowEnd, 0, 0, 0, l.flags&isAskingFlag",
		"= v.WindowEnd, 0, 0, l.contendedAt, l.flags&isAskingFlag",
	},
	{"lease.go", "kept := min(granted, uint64(maxUnits-l.held))", "kept := granted"},
	{"lease.go", "return back + granted - kept", "return back"},
	{
		"lease.go",
		"\tcase l.limit.RefillsSteadily() && l.held > 0 && l.end > asked.mono: // These units keep their end.\n",
		"",
	},
	{
		"lease.go",
		"l.end = asked.mono + int64(l.limit.LeaseTerm(v))",
		"l.end = asked.mono + 2*int64(l.limit.LeaseTerm(v))",
	},
	{"lease.go", "l.end = min(l.end, asked.mono+int64(l.limit.LeaseTerm(v)))", "_ = v"},
	{"lease.go", "l.limit.WindowBounds(v.WindowEnd - 1)", "l.limit.WindowBounds(v.WindowEnd)"},
	{"lease.go", "l.left(asked) >= l.limit.Capacity()/2", "l.left(asked) > l.limit.Capacity()/2"},

	// How much to take.
	{"lease.go", "n := l.left(t) / uint64(2*replicas)", "n := l.left(t) / uint64(replicas)"},
	{"lease.go", "if l.limitChanges() > maxLimitChanges {", "if l.limitChanges() >= maxLimitChanges {"},
	{"lease.go", "n = min(n, most)", "n = max(n, most)"},
	{"lease.go", "return max(n, amount)", "return n"},
	{"lease.go", "l.left(t) <= l.limit.Capacity()/8", "l.left(t) < l.limit.Capacity()/8"},
	{"lease.go", "l.usable(t) <= uint64(l.size.units()/2)", "uint64(l.held) <= uint64(l.size.units()/2)"},
	{"learn.go", "granted := min(asked, l.Max-min(l.Max, v.Before))", "granted := asked"},
	{"learn.go", "if granted < needed {", "if granted == 0 {"},
	{"learn.go", "return asked - granted", "return 0"},
	{"learn.go", "s.returns.addOf(h, v.WindowEnd, surplus, asked)", "_ = surplus"},
	{"learn.go", "s.returns.addOf(h, v.WindowEnd, granted, asked)", "_ = granted"},

	// Hits that are sent again.
	{"learn.go", "l.isNone() || v.After+h.Amount <= h.Limit.Capacity()", "true"},
	{"learn.go", "l.isNone() || v.After+h.Amount <= h.Limit.Capacity()", "l.isNone()"},
	{"learn.go", "until == 0 && !ownHelps && !a.isOfMore(h)", "until == 0 && !ownHelps"},
	{"learn.go", "return b.Verdicts[i].Over && !t.asks", "return !t.asks"},
	{"store.go", "a.amount > h.Amount && !h.Limit.CountBlocked", "a.amount > h.Amount"},

	// Units of the next window.
	{"ahead.go", "l.flags&askedAheadFlag == 0 && ", ""},
	{"ahead.go", "l.limit.FollowsLocalClock() && l.used >= busyUnits", "l.limit.FollowsLocalClock()"},
	{"ahead.go", "!ok || reply.begins() > now.wall", "!ok"},
	{"store.go", " && !l.hasAskedFor(now)", ""},
	{"learn.go", "isSame && !h.Atomic && h.Amount > 0", "(isSame || true) && !h.Atomic && h.Amount > 0"},
	{"learn.go", "\t\ta.ref.shard.held -= h.Amount\n", ""},
	{"ahead.go", "time.Duration(begins-now.wall)", "0*time.Duration(begins-now.wall)"},
	{"ahead.go", "; reply.verdict.Charged {", "; true {"},
	{"run.go", "b.Ahead = time.Duration(window - now.wall)", ""},
	{"run.go", "at := instant{max(now.wall, r.window), now.mono}", "at := now"},
	{"run.go", "\ts.learnBegun(s.now())\n\ts.giveBackUnneeded", "\ts.giveBackUnneeded"},
	{"run.go", "\ts.returnAhead(ctx)\n", ""},
	{"store.go", "\t\ts.learnAhead(a.ref, now)\n", ""},
	{"edit.go", "\ts.learnBegun(s.now())\n", ""},
	{"edit.go", "\ts.returnAhead(ctx)\n", ""},

	// Groups, and limits that change.
	{"learn.go", "!l.isNone() && l.windowEnd == r.windowEnd", "!l.isNone()"},
	{"learn.go", "given = l.giveBack(h.Amount, now)", "given = l.giveBack(h.Amount+1, now)"},
	{"learn.go", "if !l.limit.RefillsSteadily() || l.end <= r.end {", "{"},
	{"learn.go", "sh.held += given; given < h.Amount {", "sh.held += given; false {"},
	{"learn.go", "v.Err != nil || v.Over && !b.Hits[j].NoVeto", "v.Err != nil"},
	{"learn.go", "!isRetried(i) {\n\t\t\treturn refused", "!isRetried(i) {\n\t\t\treturn mayPass"},
	{"learn.go", "isAtomic && group == mayPass ||", "isAtomic && group != refused ||"},
	{"learn.go", "if !l.isNone() && !sameLimit(l.limit, h.Limit) {", "if false {"},
	{
		"run.go",
		"l.limitID, l.size, l.used = s.limits.intern(h.Limit, h.Owner), 0, 0",
		"l.limitID, l.size = s.limits.intern(h.Limit, h.Owner), 0",
	},
	{"run.go", "\ts.takeBack(sh, l, now)\n\ts.limits.release", "\ts.limits.release"},
	{"run.go", "sh.held -= uint64(l.held)\n\tl.held = 0\n}", "sh.held -= uint64(l.held)\n}"},
	{"run.go", "s.returns.addOf(h, v.WindowEnd, surplus, asked)", "_ = surplus"},
	{"run.go", "settle(h.Limit, v, 1, h.Amount)", "settle(h.Limit, v, h.Amount, h.Amount)"},
	{"contended.go", "l.held, r.shard.held = keep, r.shard.held-back", "r.shard.held = r.shard.held - back"},
	{"contended.go", "l.held, r.shard.held = keep, r.shard.held-back", "l.held = keep"},
	{"returns.go", "Amount: units, Window: windowEnd,", "Amount: units,"},
	{"returns.go", "q.hits, q.ends, q.keys = nil, nil, 0", "q.keys = 0"},
	{"returns.go", "h.Amount = h.Limit.CountAfter(h.Amount, time.Duration(now.forLimit(h.Limit)-q.ends[i]))", "_, _ = h, now"},
	{
		"edit.go",
		"l.held, l.used, l.taken, l.end, l.windowEnd = 0, 0, 0, 0, 0",
		"l.used, l.taken, l.end, l.windowEnd = 0, 0, 0, 0",
	},
}
