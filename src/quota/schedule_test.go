package quota

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
)

var scheduleCount = flag.Int("quota.schedules", 1, "how many random schedules TestRandomSchedules plays for each case")

// schedule is a case of TestRandomSchedules.
type schedule struct {
	buckets []string // defaults to one.
	// rules has the text of the descriptors. A schedule starts with the first, and changes to a random one.
	rules []string
	start string // when the schedule begins, if that matters.
	// steps says that the wall clock may be stepped. That would let more pass in windows without borders.
	steps bool
}

const perSecond = "[{key: k, rate_limit: {unit: second, requests_per_unit: 100}}]"

var schedules = map[string]schedule{
	"second": {rules: []string{perSecond}, steps: true},
	"minute": {rules: []string{"[{key: k, rate_limit: {unit: minute, requests_per_unit: 3000}}]"}, steps: true},
	"two limits": {rules: []string{"[{key: k, rate_limits: [{unit: second, requests_per_unit: 100}, {unit: minute, " +
		"requests_per_unit: 2000}]}]"}, steps: true},
	"calendar": {
		rules: []string{"[{key: k, rate_limit: {unit: day, requests_per_unit: 2000, calendar: true, time_zone: " +
			"Europe/Berlin}}]"},
		start: "2026-03-29T21:59:40Z", steps: true,
	},
	"first hit": {rules: []string{"[{key: k, rate_limit: {unit: second, requests_per_unit: 100, algorithm: " +
		"first_hit_window}}]"}},
	"sliding": {rules: []string{"[{key: k, rate_limit: {unit: second, requests_per_unit: 100, algorithm: " +
		"sliding_window}}]"}},
	"sliding counter": {rules: []string{"[{key: k, rate_limit: {unit: second, requests_per_unit: 100, algorithm: " +
		"sliding_window_counter}}]"}},
	"long sliding": {
		rules: []string{"[{key: k, rate_limit: {unit: second, unit_multiplier: 10, requests_per_unit: 1000, algorithm: " +
			"sliding_window}}]"},
	},
	"long sliding counter": {
		rules: []string{"[{key: k, rate_limit: {unit: second, unit_multiplier: 10, requests_per_unit: 1000, algorithm: " +
			"sliding_window_counter}}]"},
	},
	"gcra": {rules: []string{"[{key: k, rate_limit: {unit: second, requests_per_unit: 100, algorithm: gcra}}]"}},
	"gcra with a small burst": {
		rules: []string{"[{key: k, rate_limit: {unit: second, requests_per_unit: 100, algorithm: gcra, burst: 19}}]"},
	},
	"three buckets of a rule": {buckets: []string{"k=a", "k=b", "k=c"}, rules: []string{perSecond}, steps: true},
	"buckets that share a limit": {
		buckets: []string{"k=a z=1", "k=a z=2", "k=b z=1"}, steps: true,
		rules: []string{"[{key: k, charge: path, rate_limit: {unit: second, requests_per_unit: 100}, descriptors: [{key: " +
			"z, rate_limit: {unit: second, requests_per_unit: 60}}]}]"},
	},
	"shadow mode below a limit": {
		buckets: []string{"k=a z=1", "k=a z=2"}, steps: true,
		rules: []string{"[{key: k, charge: path, rate_limit: {unit: second, requests_per_unit: 100}, descriptors: [{key: " +
			"z, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 5}}]}]"},
	},
	"reloads": {
		buckets: []string{"k=a", "k=b"}, steps: true,
		rules: []string{
			perSecond,
			"[{key: k, rate_limit: {unit: second, requests_per_unit: 30}}]",
			"[{key: k, rate_limit: {unit: minute, requests_per_unit: 3000}}]",
			"[{key: k, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 10}}]",
			"[{key: k, value: a, rate_limit: {unlimited: true}}, {key: k, rate_limits: [{unit: second, requests_per_unit: " +
				"50}, {unit: hour, requests_per_unit: 900}]}]",
			"[{key: other, rate_limit: {unit: second, requests_per_unit: 10}}]",
			"[{key: k, rate_limit: {unit: second, requests_per_unit: 0}}]",
		},
	},
	"reloads to other algorithms": {
		rules: []string{
			perSecond,
			"[{key: k, rate_limit: {unit: second, requests_per_unit: 100, algorithm: gcra}}]",
			"[{key: k, rate_limit: {unit: second, requests_per_unit: 50, algorithm: sliding_window}}]",
			"[{key: k, rate_limit: {unit: second, requests_per_unit: 80, algorithm: first_hit_window}}]",
		},
	},
}

// disturb does something random to the world.
func (w *world) disturb(s *schedule) {
	p := w.proxies[w.random.IntN(len(w.proxies))]
	b := p.buckets[w.random.IntN(len(p.buckets))]
	node := w.random.IntN(len(w.nodes))
	switch w.random.IntN(13) {
	case 0:
		if len(w.proxies) < 8 {
			w.connect(node, w.random.Float64()*200, time.Duration(1+w.random.IntN(5))*time.Second)
		}
	case 1:
		p.reconnect(node)
	case 2:
		w.crash(node)
	case 3:
		p.isSilent = !p.isSilent
	case 4:
		b.denied += 1 << 62
	case 5:
		w.guards.callerRate = w.random.IntN(3) * 30
	case 6:
		if s.steps {
			w.wallOffset += time.Duration(w.random.IntN(6000)-3000) * time.Millisecond
		}
	case 7:
		b.lie = w.random.Int64N(1 << w.random.IntN(62))
	case 8:
		b.lie = -w.random.Int64N(200)
	case 9, 10:
		if len(s.rules) > 1 {
			w.useRules(w.text(s.rules[w.random.IntN(len(s.rules))]))
		}
	case 11:
		b.rate = 0 // Long enough, and the proxy has to forget the bucket.
	default:
		b.rate = w.random.Float64() * w.random.Float64() * 400
	}
}

func (w *world) text(descriptors string) string { return "domain: d\ndescriptors: " + descriptors }

// crash ends a replica, and connects its proxies to another one.
func (w *world) crash(node int) {
	old := w.nodes[node]
	w.nodes[node] = w.newNode()
	for _, p := range w.proxies {
		if p.stream.divider == old {
			p.connectTo(w.random.IntN(len(w.nodes)))
		}
	}
}

// newSchedule returns the world in which a schedule is played.
func newSchedule(t *testing.T, s *schedule, seed uint64) *world {
	t.Helper()
	w := newWorld(t, seed, "domain: d\ndescriptors: "+s.rules[0], 2+int(seed%2))
	w.slowest, w.abandonAfter = 400*time.Millisecond, 8*time.Second
	for i := range w.nodes {
		w.nodes[i] = w.newNode()
	}
	if s.start != "" {
		start, err := time.Parse(time.RFC3339, s.start)
		if err != nil {
			t.Fatal(err)
		}
		w.start = start
	}
	if s.buckets != nil {
		w.buckets = bucketIDs(s.buckets...)
	}
	w.guards = &guards{world: w}
	w.guards.watch()
	for i := range 3 {
		w.connect(i%len(w.nodes), 50*float64(i+1), time.Duration(1+2*i)*time.Second)
	}
	return w
}

func TestRandomSchedules(t *testing.T) {
	t.Parallel()
	for name, s := range schedules {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(*scheduleCount) {
				w := newSchedule(t, &s, seed)
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("seed %d", seed)
					}
				})
				for range 40 {
					w.run(time.Duration(rand.New(rand.NewPCG(seed, uint64(w.now))).IntN(2000)) * time.Millisecond)
					w.disturb(&s)
				}
				w.settle()
				if t.Failed() {
					return
				}
			}
		})
	}
}

// settle lets all proxies ask for more than there is, and checks that they get nearly all of it, in equal shares.
func (w *world) settle() {
	w.guards.callerRate, w.slowest = 0, 0
	for _, p := range w.proxies {
		p.isSilent = false
		for _, b := range p.buckets {
			b.lie, b.rate = 0, 200
		}
	}
	w.run(22 * time.Second)
	for _, p := range w.proxies {
		for _, b := range p.buckets {
			b.total = 0
		}
	}
	const seconds = 10
	w.run(seconds * time.Second)
	for _, g := range w.guards.inOrder() {
		l, sum, least := g.limit, 0, 1<<62
		for _, p := range w.proxies {
			for _, b := range p.buckets {
				if slices.Contains(g.buckets, b.id) {
					sum, least = sum+b.total, min(least, b.total)
				}
			}
		}
		isOnly := !slices.ContainsFunc(g.buckets, func(id string) bool { return len(w.guards.byBucket[id]) > 1 })
		if !isOnly || l.Period != time.Second || l.Kind == algorithm.SlidingWindowCounter || l.Capacity() < l.Max {
			continue
		}
		if all := int(l.Max) * seconds; sum < all*85/100 || sum > all+int(l.Max) {
			w.t.Errorf("%s: at the end %d of %d units were used in %d s", g.name, sum, all, seconds)
		}
		if equal := int(l.Max) * seconds / len(w.proxies) / len(g.buckets); l.Kind == algorithm.FixedWindow &&
			len(g.buckets) == 1 && least < equal/2 {
			w.t.Errorf("%s: at the end a proxy used %d units in %d s, an equal share is %d", g.name, least, seconds, equal)
		}
	}
}
