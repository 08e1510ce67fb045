package quota

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ratelimit/src/rules"
)

// A bucket is short while some proxy refuses requests. That does not flicker, though each report and each round shows
// another part of it. Idle proxies that miss their floor do not make it short.
func TestShortBuckets(t *testing.T) {
	t.Parallel()
	steps := []struct {
		rates []float64
		want  int
	}{
		{[]float64{150, 150, 0}, 1},
		{[]float64{20, 20, 0}, 0},
		{[]float64{90, 90, 0}, 1},
		{[]float64{50, 0, 0}, 0},
		{[]float64{150, 0, 0}, 1},
	}
	for _, algorithm := range []string{"fixed_window", "gcra"} {
		for _, interval := range []time.Duration{time.Second, 5 * time.Second} {
			t.Run(fmt.Sprintf("%s, reports every %v", algorithm, interval), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 1, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 100, "+
					"algorithm: "+algorithm+"}}]", 1)
				for range 3 {
					w.connect(0, 150, interval)
				}
				for _, step := range steps {
					for i, rate := range step.rates {
						w.proxies[i].rate = rate
					}
					w.run(30 * time.Second)
					for second := range 10 {
						w.run(time.Second)
						got := w.nodes[0].Stats().Totals()
						if got.ShortBuckets != step.want {
							t.Errorf("proxies want %v a second: after %d s %d buckets of 100 a second are short, want %d", step.rates,
								second, got.ShortBuckets, step.want)
						}
						if got.Unfairness > 0.3 {
							t.Errorf("proxies want %v a second: one gets %.2f less than another", step.rates, got.Unfairness)
						}
					}
				}
			})
		}
	}
}

// The figures of a bucket, which change with each event, are those that a count of all members gives.
func TestFigures(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: second, requests_per_unit: 100", 1)
	d := w.nodes[0]
	for range 5 {
		w.connect(0, 0, time.Second)
	}
	random := rand.New(rand.NewPCG(7, 1))
	for range 200 {
		switch p := w.proxies[random.IntN(5)]; random.IntN(4) {
		case 0:
			p.reconnect(0)
		default:
			p.rate = float64(random.IntN(60))
		}
		w.run(time.Duration(random.IntN(1500)) * time.Millisecond)
		for _, b := range d.list {
			var want bucketFigures
			for _, m := range b.members {
				want.demandMillis += uint64(1000 * m.demand)
				want.units += uint64(m.newest.Units)
				if m.figures.isShort {
					want.shortMembers++
				}
			}
			got := b.figures
			if got.demandMillis != want.demandMillis || got.units != want.units || got.shortMembers != want.shortMembers ||
				(got.shortSince > 0) != (want.shortMembers > 0) {
				t.Fatalf("%+v, want %+v", got, want)
			}
		}
	}
	for _, p := range w.proxies {
		p.stream.Close()
	}
	d.Step(context.Background(), w.instant())
	if len(d.list) != 0 || len(d.buckets) != 0 {
		t.Errorf("without proxies: %d buckets in the list, %d in the map", len(d.list), len(d.buckets))
	}
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: second, requests_per_unit: 100", 1)
	d := w.nodes[0]
	busy, idle := d.Connect([]byte("d")), d.Connect([]byte("d"))
	busy.Peer, idle.Peer = "busy", "idle"
	at := func(seconds float64) Instant {
		elapsed := time.Duration(seconds * float64(time.Second))
		return NewInstant(elapsed, w.start.Add(elapsed))
	}
	report := func(p *Proxy, value string, requests uint64, seconds float64) {
		err := p.Report([]byte(value), 0, requests, at(seconds), func() ([]rules.Entry, error) {
			return []rules.Entry{{Key: []byte("k"), Value: []byte(value)}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, value := range []string{"a", "b", "c"} {
		report(busy, value, 1, 1)
		report(idle, value, 0, 1)
		d.Step(t.Context(), at(1))
		report(busy, value, uint64(100*(i+1)), 2)
		report(idle, value, 0, 2)
	}
	for second := 3.0; second <= 22; second++ {
		report(busy, "c", 300, second)
		report(idle, "c", 0, second)
	}
	d.Step(t.Context(), at(22.1))
	list, count := d.Snapshot("", 2, 1, at(22.5))
	if count != 3 || len(list) != 2 || list[0].Bucket != "k=c" || list[0].DemandPerSecond != 300 ||
		list[1].Bucket != "k=b" {
		t.Fatalf("of %d buckets %+v, want those of c and b", count, list)
	}
	c := list[0]
	if c.ShortSeconds != 11.5 || c.ProxyCount != 2 || len(c.Proxies) != 1 || c.Rule != "d.k" || len(c.Limits) != 1 {
		t.Errorf("%+v: want a bucket that is short for 11.5 s, with 1 of 2 proxies", c)
	}
	p := c.Proxies[0]
	if p.Peer != "busy" || p.DemandPerSecond != 300 || p.Units < 90 || p.InUse < 90 || !p.IsShort ||
		p.AssignedSeconds != 0.4 || p.ReportedSeconds != 0.5 || p.ExpiresInSeconds <= 0 {
		t.Errorf("%+v", p)
	}
	if _, count = d.Snapshot("other", 2, 1, at(22.5)); count != 0 {
		t.Errorf("%d buckets of another domain", count)
	}
	entries := []rules.Entry{{Key: []byte("k"), Value: []byte("a")}}
	busy.Close()
	if a, found := d.BucketNamed([]byte("d"), entries, 9, at(2.5)); !found || a.LeftUnits < 90 || a.LeftSeconds <= 0 ||
		len(a.Proxies) != 1 || a.DemandPerSecond != 0 {
		t.Errorf("after a proxy left: %+v", a)
	}
	if a, _ := d.BucketNamed([]byte("d"), entries, 9, at(60)); a.LeftUnits != 0 {
		t.Errorf("%d units of a proxy that left are in use after a minute", a.LeftUnits)
	}
	idle.Close()
	d.Step(t.Context(), at(23.2))
	if got := d.Stats().Totals(); got.LeftUnits < 90 {
		t.Errorf("%+v after all proxies left", got)
	}
	d.Step(t.Context(), at(61))
	if got := d.Stats().Totals(); got != (Totals{}) {
		t.Errorf("%+v a minute after all proxies left", got)
	}
}

func TestInsertSorted(t *testing.T) {
	t.Parallel()
	var list []int
	for _, n := range []int{5, 1, 4, 1, 9, 2} {
		list = insertSorted(list, n, 3, func(a, b int) int { return a - b })
	}
	if want := []int{1, 1, 2}; !slices.Equal(list, want) {
		t.Errorf("%v, want %v", list, want)
	}
}

// A snapshot of 10,000 buckets with 100 proxies each, all of them short.
func BenchmarkSnapshot(b *testing.B) {
	d := New(Config{})
	proxies := make([]*Proxy, 100)
	for i := range proxies {
		proxies[i] = d.Connect([]byte("d"))
	}
	for i := range 10_000 {
		bucket := &bucket{domain: []byte("d"), entries: []rules.Entry{{Key: []byte("k"), Value: fmt.Append(nil, i)}}}
		d.list = append(d.list, bucket)
		for j, p := range proxies {
			m := &member{
				proxy: p, bucket: bucket, demand: float64(j), lastReport: 1, interval: 5,
				figures: memberFigures{isShort: true, askedRate: 2, admittedRate: 1},
			}
			bucket.members = append(bucket.members, m)
			bucket.count(m, 1)
		}
	}
	for _, part := range []struct {
		name string
		do   func()
	}{
		{"20 buckets", func() { d.Snapshot("", 20, 10, NewInstant(time.Second, time.Unix(0, 0))) }},
		{"totals", func() { d.addUp(int64(time.Second)) }},
	} {
		b.Run(part.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				part.do()
			}
		})
	}
}

// What makes a division unfair: callers that come in bursts, in a window that is shorter than the time between bursts,
// and answers that do not reach a proxy. One of two proxies has 40 requests a second, and the limit is 20.
func TestUnfairness(t *testing.T) {
	t.Parallel()
	const second, tenSeconds = "unit: second, requests_per_unit: 20",
		"unit: second, unit_multiplier: 10, requests_per_unit: 200"
	for _, tt := range []struct {
		what, limit string
		rate, burst float64 // The other proxy has rate requests a second, and burst requests at once every 4.1 s.
		isDeaf      bool    // true if no answers reach it after its first ones.
		least, most float64 // the unfairness a minute later, for half a minute.
	}{
		{"steady", second, 40, 0, false, 0, 0.1},
		{"bursts in a long window", tenSeconds, 0, 80, false, 0, 0.3},
		{"bursts in a short window", second, 0, 80, false, 0.6, 1},
		{"no answers", second, 40, 0, true, 0.9, 1},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			w := limitedWorld(t, tt.limit, 1)
			w.connect(0, 40, 5*time.Second)
			other := w.connect(0, tt.rate, 5*time.Second)
			w.run(time.Second)
			if tt.isDeaf {
				other.received = time.Hour
			}
			for range 22 {
				w.run(4100 * time.Millisecond)
				other.owed += tt.burst
				if got := w.nodes[0].Stats().Totals().Unfairness; w.now > time.Minute && (got < tt.least || got > tt.most) {
					t.Errorf("after %v one proxy gets %.2f less than its share, want %.2f to %.2f", w.now, got, tt.least, tt.most)
				}
			}
		})
	}
}
