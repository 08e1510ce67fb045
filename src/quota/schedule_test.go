package quota

import (
	"context"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

var scheduleCount = flag.Int("quota.schedules", 3, "how many random schedules TestRandomSchedules plays for each limit")

// guard checks, for the only bucket of a world, what docs/rlqs.md says of each window.
type guard struct {
	world    *world
	limit    int
	period   time.Duration
	rolls    bool // rolls says that windows have no borders: each window that ends now is checked.
	window   int64
	admitted int
	carried  int   // carried is what was assigned and neither used nor expired when the window began.
	counts   []int // counts and carries have a value for each millisecond, if rolls is set.
	carries  []int
	sum      int // sum is what was admitted since the last restart of the counts.
}

// unused returns what proxies may still use, and what is on the way to them.
func (g *guard) unused() (units int) {
	for _, p := range g.world.proxies {
		units += int(p.inFlight)
		if p.current.Action == AssignUnits && g.world.now < p.expiresAt {
			units += int(p.left)
		}
	}
	return units
}

func (g *guard) restart() {
	g.admitted, g.carried, g.counts, g.carries, g.sum = 0, g.unused(), nil, nil, 0
}

// tick starts a window if one begins now.
func (g *guard) tick() {
	if g.rolls {
		g.counts, g.carries = append(g.counts, g.sum), append(g.carries, g.unused())
		return
	}
	if window := g.world.instant().wall / int64(g.period); window != g.window {
		g.window = window
		g.restart()
	}
}

func (g *guard) admit() {
	w := g.world
	if g.admitted++; !g.rolls {
		if g.admitted > g.limit+g.carried {
			w.t.Fatalf("at %v: %d admitted in one window: the limit is %d, and %d were carried over", w.now, g.admitted, g.limit, g.carried)
		}
		return
	}
	g.sum++
	begin := max(0, len(g.counts)-int(g.period/time.Millisecond))
	if got := g.sum - g.counts[begin]; got > 2*g.limit+g.carries[begin] {
		w.t.Fatalf("at %v: %d admitted within %v: twice the limit of %d, and %d were carried over", w.now, got, g.period, g.limit, g.carries[begin])
	}
}

// disturb does something random to the world.
func (w *world) disturb(steps bool) {
	p := w.proxies[w.random.IntN(len(w.proxies))]
	node := w.random.IntN(len(w.nodes))
	switch w.random.IntN(9) {
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
		p.denied += 1 << 62
	case 5:
		w.callerRate = w.random.IntN(3) * 30
	case 6:
		if steps {
			w.wallOffset += time.Duration(w.random.IntN(6000)-3000) * time.Millisecond
		}
	default:
		p.rate = w.random.Float64() * w.random.Float64() * 400
	}
}

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

// call asks for units as other callers do.
func (w *world) call() {
	if w.random.IntN(1000) >= w.callerRate {
		return
	}
	req := limiter.Request{
		Domain: []byte("d"), Now: time.Unix(0, w.instant().wall),
		Descriptors: []limiter.Descriptor{{Entries: []rules.Entry{{Key: []byte("k"), Value: []byte("v")}}}},
	}
	var a limiter.Answer
	if err := w.limiter.Check(context.Background(), &req, &a); err != nil {
		w.t.Fatal(err)
	}
	if !a.Over {
		w.guard.admit()
	}
}

func TestRandomSchedules(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		keys   string
		limit  int
		period time.Duration
		rolls  bool
	}{
		"second":     {"rate_limit: {unit: second, requests_per_unit: 100}", 100, time.Second, false},
		"minute":     {"rate_limit: {unit: minute, requests_per_unit: 3000}", 3000, time.Minute, false},
		"two limits": {"rate_limits: [{unit: second, requests_per_unit: 100}, {unit: minute, requests_per_unit: 2000}]", 100, time.Second, false},
		"first hit":  {"rate_limit: {unit: second, requests_per_unit: 100, algorithm: first_hit_window}", 100, time.Second, true},
		"sliding":    {"rate_limit: {unit: second, requests_per_unit: 100, algorithm: sliding_window}", 100, time.Second, true},
		"gcra":       {"rate_limit: {unit: second, requests_per_unit: 100, algorithm: gcra}", 100, time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(*scheduleCount) {
				text := "domain: d\ndescriptors: [{key: k, " + tt.keys + "}]"
				w := newWorld(t, seed, text, 2+int(seed%2))
				w.slowest = 400 * time.Millisecond
				w.guard = &guard{world: w, limit: tt.limit, period: tt.period, rolls: tt.rolls}
				for i := range 3 {
					w.connect(i%len(w.nodes), 50*float64(i+1), time.Duration(1+2*i)*time.Second)
				}
				for range 40 {
					w.run(time.Duration(rand.New(rand.NewPCG(seed, uint64(w.now))).IntN(2000)) * time.Millisecond)
					w.disturb(!tt.rolls)
				}
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

// When proxies ask for more than there is and nothing fails, nearly all of it is used.
func TestUtilisation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 1000}}]", 2)
	for i := range 4 {
		w.connect(i%2, 500, 5*time.Second)
	}
	w.run(20 * time.Second)
	before := 0
	for _, p := range w.proxies {
		before += p.total
	}
	w.run(30 * time.Second)
	after := -before
	for _, p := range w.proxies {
		after += p.total
	}
	if after < 30*1000*9/10 {
		t.Errorf("%d of 30,000 units were used, want 90 %%", after)
	}
}
