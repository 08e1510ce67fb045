package quota

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

// world is a simulation of proxies and replicas on a virtual clock, in steps of a millisecond. Proxies behave as Envoy
// does.
type world struct {
	t            testing.TB
	random       *rand.Rand
	now          time.Duration // the time since the start.
	start        time.Time
	store        backend.Backend
	limiter      *limiter.Limiter
	nodes        []*Divider
	proxies      []*simProxy
	events       []simEvent
	replicas     int
	abandonAfter time.Duration // Config.AbandonAfter.
	// slowest is the longest time of a message; most take less than 20 ms.
	slowest time.Duration
	// wallOffset is by how much the wall clock was stepped.
	wallOffset time.Duration
	// buckets are the quota buckets of each proxy.
	buckets []simBucketID
	guards  *guards // guards, if set, check what is admitted.
	// returned is how many units have gone back to sliding windows.
	returned int
}

// returnCounter is the store of a replica. It counts world.returned.
type returnCounter struct {
	backend.Backend
	world *world
}

func (c returnCounter) Take(ctx context.Context, b *backend.Batch) error {
	err := c.Backend.Take(ctx, b)
	for i := range b.Hits {
		if h, v := &b.Hits[i], &b.Verdicts[i]; h.Op == algorithm.Refund && h.Limit.Kind == algorithm.SlidingWindow &&
			err == nil {
			c.world.returned += int(v.Before - v.After)
		}
	}
	return err
}

// simBucketID names a quota bucket.
type simBucketID struct {
	id      string
	entries []rules.Entry // sorted by key.
}

// bucketIDs returns the buckets that texts such as "k=v z=1" name. The entries are sorted by key.
func bucketIDs(texts ...string) (ids []simBucketID) {
	for _, text := range texts {
		b := simBucketID{id: text}
		for _, pair := range strings.Fields(text) {
			key, value, _ := strings.Cut(pair, "=")
			b.entries = append(b.entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
		}
		ids = append(ids, b)
	}
	return ids
}

type simEvent struct {
	at  time.Duration
	do  func()
	seq int
}

// limitedWorld returns a world with one limit for each value of the key k.
func limitedWorld(t testing.TB, limit string, replicas int) *world {
	t.Helper()
	return newWorld(t, 1, "domain: d\ndescriptors: [{key: k, rate_limit: {"+limit+"}}]", replicas)
}

func newWorld(t testing.TB, seed uint64, rulesText string, replicas int) *world {
	t.Helper()
	store := limitertest.Store(t, memory.Config{})
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), start: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		store: store, limiter: limiter.New(limiter.Config{Backend: store}), replicas: replicas, buckets: bucketIDs("k=v"),
	}
	w.useRules(rulesText)
	for range replicas {
		w.nodes = append(w.nodes, w.newNode())
	}
	return w
}

// newNode returns a replica.
func (w *world) newNode() *Divider {
	return New(Config{
		Limiter: w.limiter, Backend: returnCounter{w.store, w}, VirtualTime: true,
		StoreIsShared: w.replicas > 1,
		AbandonAfter:  w.abandonAfter,
	})
}

func (w *world) useRules(text string) {
	w.t.Helper()
	set, _, err := filerules.Load([]filerules.File{{Name: "rules.yaml", Data: []byte(text)}}, compile.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.limiter.UseRules(set)
	if w.guards != nil {
		w.guards.watch()
	}
}

// bucketOf returns the only bucket of a node.
func (w *world) bucketOf(node int) *bucket {
	for _, b := range w.nodes[node].buckets {
		return b
	}
	w.t.Fatal("no bucket")
	return nil
}

func (w *world) instant() Instant { return NewInstant(w.now, w.start.Add(w.now+w.wallOffset)) }

func (w *world) after(d time.Duration, do func()) {
	w.events = append(w.events, simEvent{w.now + d, do, len(w.events)})
}

func (w *world) delay() time.Duration {
	if w.slowest > 0 && w.random.IntN(10) == 0 {
		return time.Duration(w.random.Int64N(int64(w.slowest)))
	}
	return time.Duration(w.random.IntN(20)) * time.Millisecond
}

// run lets the time pass.
func (w *world) run(d time.Duration) {
	for end := w.now + d; w.now < end; w.now += time.Millisecond {
		slices.SortStableFunc(w.events, func(a, b simEvent) int { return cmp.Compare(a.at, b.at) })
		for len(w.events) > 0 && w.events[0].at <= w.now {
			e := w.events[0]
			w.events = w.events[1:]
			e.do()
		}
		if w.guards != nil {
			w.guards.tick()
			w.guards.call()
		}
		for _, p := range w.proxies {
			p.step()
		}
		for _, n := range w.nodes {
			if w.now%tickTime == 0 || len(n.wake) > 0 {
				select {
				case <-n.wake:
				default:
				}
				n.Step(context.Background(), w.instant())
			}
		}
		for _, p := range w.proxies {
			p.receive()
		}
	}
}

// simProxy is a proxy.
type simProxy struct {
	*simBucket // simBucket is the first of buckets, the only one in most tests.
	buckets    []*simBucket
	world      *world
	stream     *Proxy
	interval   time.Duration
	lastReport time.Duration
	isSilent   bool // true if the proxy uses its units, and does not report.
	// sent and received are when the last message of each direction arrives: messages keep their order.
	sent, received time.Duration
}

// simBucket is what a proxy does with the requests of a bucket.
type simBucket struct {
	simBucketID
	rate float64 // how many requests a second arrive.
	owed float64

	known           bool // true if the bucket was reported.
	allowed, denied uint64
	current         Assignment
	left            uint64
	expiresAt       time.Duration
	total           int    // how many requests passed.
	inFlight        uint64 // how many units are on the way to the proxy.
	lie             int64  // what the next report adds to allowed.
}

// connect adds a proxy with the same rate in each bucket.
func (w *world) connect(node int, rate float64, interval time.Duration) *simProxy {
	p := &simProxy{world: w, interval: interval}
	for _, id := range w.buckets {
		p.buckets = append(p.buckets, &simBucket{simBucketID: id, rate: rate})
	}
	p.simBucket = p.buckets[0]
	p.connectTo(node)
	w.proxies = append(w.proxies, p)
	return p
}

// connectTo starts a stream to a replica. The old one is gone with what was on the way.
func (p *simProxy) connectTo(node int) {
	p.stream = p.world.nodes[node].Connect([]byte("d"))
	p.sent, p.received, p.lastReport = 0, 0, 0
	for _, b := range p.buckets {
		b.inFlight = 0
	}
}

// reconnect ends the stream, and starts one to another replica.
func (p *simProxy) reconnect(node int) {
	p.stream.Close()
	p.connectTo(node)
}

// inOrder calls do after the delay of a message, unless the stream ends before, and not before the last message of its
// direction.
func (p *simProxy) inOrder(last *time.Duration, do func()) {
	*last = max(*last, p.world.now+p.world.delay())
	stream := p.stream
	p.world.after(*last-p.world.now, func() {
		if p.stream == stream {
			do()
		}
	})
}

func (p *simProxy) step() {
	w := p.world
	isDue := !p.isSilent && w.now-p.lastReport >= p.interval
	for _, b := range p.buckets {
		if b.known && isDue {
			p.report(b)
		}
		for b.owed += b.rate / 1000; b.owed >= 1; b.owed-- {
			switch action := b.pass(w.now); action {
			case DenyAll:
				b.denied++
			default:
				b.allowed++
				b.total++
				if w.guards != nil && action == AssignUnits {
					w.guards.admit(b.id)
				}
			}
			if !b.known {
				b.known = true
				p.report(b)
			}
		}
	}
	if isDue {
		p.lastReport = w.now
	}
}

// pass decides a request. It returns DenyAll, or the action by which the request passes. Without an assignment none
// passes.
func (b *simBucket) pass(now time.Duration) Action {
	switch {
	case b.current.Bucket == nil || now >= b.expiresAt || b.current.Action == DenyAll:
		return DenyAll
	case b.current.Action == AllowAll:
		return AllowAll
	case b.left == 0:
		return DenyAll
	}
	b.left--
	return AssignUnits
}

// unused returns how many units the proxy may still use, and how many are on the way to it.
func (b *simBucket) unused(now time.Duration) uint64 {
	if b.current.Action == AssignUnits && now < b.expiresAt {
		return b.inFlight + b.left
	}
	return b.inFlight
}

func (p *simProxy) report(b *simBucket) {
	allowed, denied := b.allowed, b.denied
	if w := p.world; b.lie != 0 {
		allowed = uint64(max(int64(min(allowed, 1<<62))+b.lie, 0))
		if b.allowed > allowed {
			w.guards.hide(b.id, int(b.allowed-allowed))
		}
	}
	b.allowed, b.denied, b.lie = 0, 0, 0
	p.inOrder(&p.sent, func() {
		err := p.stream.Report([]byte(b.id), allowed, denied, p.world.instant(),
			func() ([]rules.Entry, error) { return b.entries, nil })
		if err != nil {
			p.world.t.Error(err)
		}
	})
}

func (p *simProxy) receive() {
	for _, a := range p.stream.TakePending(nil) {
		b := p.buckets[slices.IndexFunc(p.buckets, func(b *simBucket) bool { return b.id == string(a.Bucket) })]
		isNew := a.Action == AssignUnits && !a.IsExtension
		if isNew {
			b.inFlight += uint64(a.Units)
		}
		p.inOrder(&p.received, func() {
			if isNew {
				b.inFlight -= uint64(a.Units)
			}
			b.apply(&a, p.world.now)
		})
	}
}

// apply does what an assignment says.
func (b *simBucket) apply(a *Assignment, now time.Duration) {
	if a.Action == Abandon {
		b.known, b.current, b.left, b.allowed, b.denied = false, Assignment{}, 0, 0, 0
		return
	}
	had := b.current
	switch {
	case a.Action != AssignUnits:
	case !a.IsExtension || had.Action != AssignUnits || had.Bucket == nil || now >= b.expiresAt:
		b.left = uint64(a.Units)
	case a.Serial != had.Serial: // As Envoy does: the new bucket is as full as the old one was.
		b.left = b.left * uint64(a.Units) / uint64(had.Units)
	}
	b.current, b.expiresAt = *a, now+a.TTL
}

// phase is a stretch of time in which each proxy asks for so many requests a second, and what they let pass in its last
// seconds.
type phase struct {
	asks  []float64
	every []float64 // how many requests a second each proxy lets pass in the second half of the phase.
}

// The shares of proxies on one replica, and on two that share a store. Half of a phase is two reports of proxies that
// report every 5 s, as Envoy does: by then the shares are those that the phase asks for.
func TestShares(t *testing.T) {
	t.Parallel()
	phases := []phase{
		{asks: []float64{150, 0}, every: []float64{98, 0}},
		{asks: []float64{0, 150}, every: []float64{0, 98}},
		{asks: []float64{150, 150}, every: []float64{50, 50}},
		{asks: []float64{20, 150}, every: []float64{20, 78}},
		{asks: []float64{40, 40}, every: []float64{40, 40}},
	}
	for _, limit := range []string{
		"", ", algorithm: first_hit_window", ", algorithm: gcra",
		", algorithm: sliding_window",
	} {
		for replicas := 1; replicas <= 2; replicas++ {
			t.Run(fmt.Sprintf("%d replicas%s", replicas, limit), func(t *testing.T) {
				t.Parallel()
				w := limitedWorld(t, "unit: second, requests_per_unit: 100"+limit, replicas)
				a, b := w.connect(0, 0, 5*time.Second), w.connect(replicas-1, 0, 5*time.Second)
				for i, p := range phases {
					a.rate, b.rate = p.asks[0], p.asks[1]
					w.run(11 * time.Second)
					before := [2]int{a.total, b.total}
					w.run(10 * time.Second)
					for j, proxy := range []*simProxy{a, b} {
						got, want := float64(proxy.total-before[j])/10, p.every[j]
						if tolerance := max(8, want/5); got < want-tolerance || got > want+tolerance {
							t.Errorf("phase %d: proxy %d lets %.1f a second pass, want %.1f", i, j, got, want)
						}
					}
				}
			})
		}
	}
}
