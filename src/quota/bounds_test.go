package quota

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"ratelimit/src/rules"
)

// Buckets beyond the bounds are refused, and those of a stream that ends are forgotten.
func TestBucketsAreBounded(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: second, requests_per_unit: 100", 1)
	n := w.nodes[0]
	n.cfg.MaxBuckets, n.cfg.MaxBucketsPerProxy = 5, 3
	report := func(p *Proxy, i int) error {
		text := []byte(fmt.Sprint(i))
		return p.Report(text, 0, 1<<63, w.instant(),
			func() ([]rules.Entry, error) { return []rules.Entry{{Key: []byte("k"), Value: text}}, nil })
	}
	a, b := n.Connect([]byte("d")), n.Connect([]byte("d"))
	for i := range 100 {
		if err := report(a, i); (err != nil) != (i >= 3) || err != nil && !errors.Is(err, ErrTooManyBuckets) {
			t.Errorf("bucket %d of the first proxy: %v", i, err)
		}
		if err := report(b, 100+i); (err != nil) != (i >= 2) {
			t.Errorf("bucket %d of the second proxy: %v", i, err)
		}
	}
	w.now += time.Second
	n.Step(t.Context(), w.instant())
	a.Close()
	b.Close()
	w.now += time.Minute
	n.Step(t.Context(), w.instant())
	s := n.Stats()
	if s.Buckets.Load() != 0 || s.Members.Load() != 0 || s.Proxies.Load() != 0 || len(n.buckets) != 0 {
		t.Errorf("after the streams ended: %d buckets, %d members, %d proxies", s.Buckets.Load(), s.Members.Load(),
			s.Proxies.Load())
	}
	if got := s.RefusedBuckets.Load(); got != 97+98 {
		t.Errorf("%d buckets were refused, want 195", got)
	}
}

// A stream that takes nothing keeps one assignment for each of its buckets.
func TestUntakenAssignmentsAreBounded(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: second, requests_per_unit: 100", 1)
	p := w.nodes[0].Connect([]byte("d"))
	for range 1000 {
		if err := p.Report([]byte("id"), 0, 1000, w.instant(), oneEntry); err != nil {
			t.Fatal(err)
		}
		w.now += 100 * time.Millisecond
		w.nodes[0].Step(t.Context(), w.instant())
	}
	if len(p.pending) != 1 {
		t.Errorf("%d assignments wait, want 1", len(p.pending))
	}
}

// When other limits come into force, proxies get new units, which are charged to the new counters.
func TestReloadReplacesUnits(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: minute, requests_per_unit: 100", 1)
	p := w.connect(0, 50, 5*time.Second)
	w.run(500 * time.Millisecond)
	first := p.current
	for _, limit := range []int{1000, 5} {
		w.useRules(fmt.Sprintf("domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, unit_multiplier: %d, "+
			"requests_per_unit: %[1]d}}]", limit))
		w.nodes[0].hurry(w.bucketOf(0))
		w.run(100 * time.Millisecond)
		if p.current.Serial == first.Serial || p.current.Action != AssignUnits || p.current.Units > uint32(limit) {
			t.Errorf("after the reload to %d: %+v, before: %+v", limit, p.current, first)
		}
		first = p.current
	}
}

// A proxy that wrote the entries of a bucket in two orders, and had to forget the bucket, starts anew with either of
// them.
func TestAbandonedInAnotherOrder(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: second, requests_per_unit: 100", 1)
	n := w.nodes[0]
	n.cfg.AbandonAfter = time.Minute
	p := n.Connect([]byte("d"))
	for _, step := range []struct {
		id      string
		denied  uint64
		after   time.Duration
		members int64
		want    Action
	}{
		{"one order", 1, 0, 1, AssignUnits},
		{"another order", 1, 0, 1, AssignUnits},
		{"one order", 0, time.Minute, 0, Abandon},
		{"another order", 1, time.Second, 1, AssignUnits},
	} {
		w.now += step.after
		if err := p.Report([]byte(step.id), 0, step.denied, w.instant(), oneEntry); err != nil {
			t.Fatal(err)
		}
		w.now += time.Second
		n.Step(t.Context(), w.instant())
		got, members := p.TakePending(nil), n.Stats().Members.Load()
		if members != step.members || len(got) > 0 && got[len(got)-1].Action != step.want ||
			len(got) == 0 && step.id == "one order" {
			t.Errorf("%s: %d members and %+v, want %d and action %d", step.id, members, got, step.members, step.want)
		}
	}
}

// counted is a Memory that counts.
type counted struct{ bytes, most int64 }

func (c *counted) HoldBytes(bytes int64) bool {
	if c.bytes+bytes > c.most {
		return false
	}
	c.bytes += bytes
	return true
}

func (c *counted) ReleaseBytes(bytes int64) { c.bytes -= bytes }

// What a proxy holds is about what its buckets take. The test does not run beside others, which would allocate.
func TestMemoryOfBuckets(t *testing.T) {
	const proxies, buckets = 20, 200
	w := newWorld(t, 1, perMinute, 1)
	n := w.nodes[0]
	runtime.GC()
	runtime.GC() // What earlier tests left in pools needs two.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	held := &counted{most: 1 << 40}
	list := make([]*Proxy, proxies)
	for i := range list {
		list[i] = n.Connect([]byte("d"))
		list[i].Memory = held
	}
	var pending []Assignment
	for round := range 3 {
		w.now += 5 * time.Second
		for _, p := range list {
			for i := range buckets {
				value := fmt.Appendf(nil, "a value as long as many are %d", i)
				err := p.Report(value, 0, uint64(round), w.instant(),
					func() ([]rules.Entry, error) { return []rules.Entry{{Key: []byte("k"), Value: value}}, nil })
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		w.round(w.now)
		for _, p := range list {
			pending = p.TakePending(pending[:0])
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	took := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d buckets of %d proxies take %d bytes of the heap, the proxies hold %d", buckets, proxies, took, held.bytes)
	if took > held.bytes {
		t.Errorf("%d bytes of the heap are taken, but %d held", took, held.bytes)
	}
	for _, p := range list {
		p.Close()
	}
	w.round(w.now + time.Minute)
	if held.bytes != 0 {
		t.Errorf("%d bytes are held after the streams ended", held.bytes)
	}
	runtime.KeepAlive(n)
}

// A stream with a little memory has to end when it reports more buckets.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, perMinute, 1)
	held := &counted{most: 20 << 10}
	p := w.nodes[0].Connect([]byte("d"))
	p.Memory = held
	for i := 0; ; i++ {
		value := fmt.Append(nil, i)
		err := p.Report(value, 0, 1, w.instant(),
			func() ([]rules.Entry, error) { return []rules.Entry{{Key: []byte("k"), Value: value}}, nil })
		if errors.Is(err, ErrTooMuchMemory) {
			break
		}
		if err != nil || i == 100 {
			t.Fatalf("bucket %d: %v", i, err)
		}
	}
	p.Close()
	if s := w.nodes[0].Stats(); held.bytes != 0 || s.Buckets.Load() != 0 {
		t.Errorf("after the end: %d bytes and %d buckets", held.bytes, s.Buckets.Load())
	}
}
