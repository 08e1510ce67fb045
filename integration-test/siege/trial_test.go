//go:build linux

package siege

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
)

// attack is one way to take the service from others.
type attack struct {
	letter string // of its kind: see kinds
	name   string
	does   string // for the document

	store storeName // behind the service; memory by default
	env   []string
	rules string // more entries of descriptors
	// prepare changes how the service is started; may be nil.
	prepare func(x *trial, o *options)
	// strike attacks, and complains of what it sees. It returns in time, and
	// ends when x.ctx does.
	strike func(x *trial)

	peak       int64 // most resident memory; 0: residentBytes
	kept       int64 // heap that is rightly left afterwards, such as counters; 0: slackHeap
	goroutines int   // most beyond those before; 0: mostGoroutines
	// tolerant: the neighbour's calls may fail, since its store is away. They must
	// still be answered in time.
	tolerant bool
	// unhurried: the attack takes the neighbour's time by its nature.
	unhurried bool
	// quiet attacks mostly wait, so several run side by side.
	quiet bool
	// ends: the attack stops the service.
	ends bool
	// onlyFull: there is no smaller form that says anything.
	onlyFull bool
}

type storeName string

const (
	memory    storeName = "memory"
	redis     storeName = "Redis"
	memcached storeName = "Memcached"
)

// size is how large attacks are, and how they are judged.
type size struct {
	full         bool
	calm         time.Duration // before the attack, for the ratio
	atMost       time.Duration // for an attack
	deadline     time.Duration // of the neighbour's calls
	storeTimeout time.Duration
	slower       int           // times the p99 of the calm phase
	floor        time.Duration // of that bound
	mostFailed   float64       // share of the neighbour's calls
	forgiven     int           // failed calls besides
}

// In short, other tests may have the machine at the same time. A call that hangs
// outlasts all of it.
var (
	inShort = size{
		calm: 400 * time.Millisecond, atMost: 20 * time.Second, deadline: 2 * time.Second,
		storeTimeout: 250 * time.Millisecond, slower: 10, floor: 500 * time.Millisecond, mostFailed: 0.02, forgiven: 1,
	}
	inFull = size{
		full: true, calm: 3 * time.Second, atMost: 3 * time.Minute, deadline: time.Second,
		storeTimeout: 50 * time.Millisecond, slower: 10, floor: 50 * time.Millisecond, mostFailed: 0.001,
	}
)

const (
	atLeast        = 300 * time.Millisecond
	mostGoroutines = 3000
	// What may be left afterwards: connections of those that ask for the figures,
	// and what Go's tables and pools keep.
	slackGoroutines = 30
	slackFiles      = 16
	slackHeap       = 48 << 20
	// attempts are made when times or calls go wrong: the machine may be busy.
	// What goes wrong each time is the service's doing.
	attempts = 3
	// A nap that ends late tells how busy the machine is. So many times as much
	// is forgiven to the neighbour's calls.
	nap, forgivenNaps = 5 * time.Millisecond, 5
)

// trial is one attack as it happens.
type trial struct {
	*testing.T
	size
	attack  *attack
	ctx     context.Context // ends when the attack has to
	service *service
	server  *redistest.Server     // nil without Redis
	cache   *memcachedtest.Server // nil without Memcached
	store   string                // address of the server behind it; empty with memory
	proxy   *harness.Proxy        // the way there, of throughProxy
	fifo    *os.File              // stderr of the service, in attacks on the log
	state   any                   // what prepare leaves for strike

	neighbour *neighbour
	machine   *machine
	result    *result
}

// pick is a number for the size of the attack.
func pick[T any](x *trial, short, full T) T {
	if x.full {
		return full
	}
	return short
}

// complain says what is wrong, whatever the machine does besides.
func (x *trial) complain(format string, args ...any) {
	x.result.add(&x.result.problems, format, args...)
}

// suspect says what is wrong, unless the machine is busy.
func (x *trial) suspect(format string, args ...any) {
	x.result.add(&x.result.suspicions, format, args...)
}

// note adds a figure to the report.
func (x *trial) note(format string, args ...any) { x.result.add(&x.result.notes, format, args...) }

// result is what was seen.
type result struct {
	attack *attack
	took   time.Duration
	calm   quality
	during quality
	after  quality
	vitals [3]vitals // before, the highest, after
	peak   int64
	late   time.Duration // of the nap that ended latest during the attack
	group  string        // "" with a control group, or why there is none
	// unmeasured is why there is nothing to see on this machine; "" otherwise.
	unmeasured string

	mu                          sync.Mutex // guards what follows
	problems, suspicions, notes []string
}

func (r *result) add(to *[]string, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(*to) < 8 { // more say no more
		*to = append(*to, fmt.Sprintf(format, args...))
	}
}

// wrong is everything that is.
func (r *result) wrong() []string {
	return append(append([]string(nil), r.problems...), r.suspicions...)
}

// try makes one attack, again if the machine may be to blame.
func try(t *testing.T, a *attack, with size) (r *result) {
	t.Helper()
	for n := range attempts {
		r = attempt(t, a, with)
		if len(r.problems) > 0 || len(r.suspicions) == 0 || n == attempts-1 {
			break
		}
		t.Logf("the machine may be busy, so this is tried again: %s", strings.Join(r.suspicions, "; "))
	}
	return r
}

func attempt(t *testing.T, a *attack, with size) *result {
	t.Helper()
	begun := time.Now()
	x := &trial{T: t, size: with, attack: a, result: &result{attack: a}}
	o := options{env: append([]string(nil), a.env...), rules: a.rules}
	x.startStore(&o)
	if a.prepare != nil {
		a.prepare(x, &o)
	}
	if x.result.unmeasured != "" {
		return x.result
	}
	x.service = startService(t, o)
	x.result.group = x.service.alone
	x.neighbour = startNeighbour(t, x.service.grpc, "neighbour", with.deadline)
	harness.Await(t, harness.Deadline, "the neighbour is not served", func() error {
		if q := x.neighbour.between(begun, time.Now()); q.calls == q.failed {
			return errors.New(x.neighbour.problem())
		}
		return nil
	})
	calm := time.Now()
	time.Sleep(with.calm)
	before, err := x.service.vitals()
	if err != nil {
		t.Fatal(err)
	}
	x.result.vitals[0] = before

	start := time.Now()
	x.result.calm = x.neighbour.between(calm, start)
	watch := watchVitals(x.service)
	ctx, cancel := context.WithTimeout(t.Context(), with.atMost)
	x.ctx = ctx
	x.machine = watchMachine()
	a.strike(x)
	time.Sleep(time.Until(start.Add(atLeast))) // so that the neighbour calls meanwhile
	cancel()
	end := time.Now()
	x.result.late = x.machine.end()
	if x.result.unmeasured == "" {
		x.aftermath(start, end)
	}
	x.result.vitals[1] = watch.end()
	x.neighbour.end()
	if x.result.unmeasured == "" {
		x.check()
	}
	x.service.proc.Stop()
	x.result.took = time.Since(begun)
	return x.result
}

// throughProxy puts a proxy before the store.
func throughProxy(x *trial, o *options) {
	x.proxy = harness.StartProxy(x.T, x.store)
	x.reach(o, x.proxy.Addr)
}

// reach has the service find its store at addr; the last one counts.
func (x *trial) reach(o *options, addr string) {
	switch x.attack.store {
	case redis:
		o.env = append(o.env, "REDIS_URL="+addr)
	case memcached:
		o.env = append(o.env, "MEMCACHE_HOST_PORT="+addr)
	}
}

// startStore starts what counts.
func (x *trial) startStore(o *options) {
	switch x.attack.store {
	case redis:
		// As docs/redis.md advises. At the default of 10, Redis deletes expired keys
		// for up to 25 ms at a time, in which it answers no command: keys of gcra live
		// for seconds, and the attack makes 75,000 a second.
		x.server = redistest.Start(x.T, redistest.Options{Args: []string{"--hz", "100"}})
		x.store = x.server.Addr
		o.env = append(o.env, "BACKEND_TYPE=redis", "REDIS_TIMEOUT="+x.storeTimeout.String(), "REDIS_STARTUP_MAX_INTERVAL=1s")
	case memcached:
		x.cache = memcachedtest.Start(x.T, memcachedtest.Options{})
		x.store = x.cache.Addr
		o.env = append(o.env, "BACKEND_TYPE=memcache", "MEMCACHE_TIMEOUT="+x.storeTimeout.String())
	case memory, "":
		o.env = append(o.env, "BACKEND_TYPE=memory")
	}
	x.reach(o, x.store)
}

// aftermath waits until the neighbour is served as before and the vitals are back.
func (x *trial) aftermath(start, end time.Time) {
	if x.attack.ends {
		x.result.during = x.neighbour.between(start, end)
		return
	}
	if err := x.service.proc.Exited(); err != nil {
		x.result.during = x.neighbour.between(start, end)
		x.complain("the process ended%s: %s", x.service.group.verdict(), lastLine(err.Error()))
		return
	}
	peak, err := x.service.peak()
	if err != nil {
		x.complain("its peak memory: %v", err)
	}
	x.result.peak = peak
	before := x.result.vitals[0]
	var now vitals
	err = harness.Retry(harness.Deadline, func() (err error) {
		if err := x.service.proc.Exited(); err != nil {
			return harness.Permanent{Err: fmt.Errorf("the process ended%s", x.service.group.verdict())}
		}
		if now, err = x.service.vitals(); err != nil {
			return err
		}
		if now.Goroutines > before.Goroutines+slackGoroutines || now.Files > before.Files+slackFiles ||
			now.Heap > before.Heap+max(slackHeap, x.attack.kept) {
			return fmt.Errorf("%d goroutines, %d files and %d MiB of heap are left, before were %d, %d and %d MiB",
				now.Goroutines, now.Files, now.Heap>>20, before.Goroutines, before.Files, before.Heap>>20)
		}
		return nil
	})
	if err != nil {
		x.complain("afterwards: %v", err)
	}
	x.result.vitals[2] = now
	if !x.service.proc.Alive() {
		x.result.during = x.neighbour.between(start, end)
		return
	}
	err = harness.Retry(harness.Deadline, func() error {
		to := time.Now()
		x.result.after = x.neighbour.between(to.Add(-x.calm), to)
		if q := x.result.after; q.calls == 0 || q.failed > x.forgiven || q.p99 > x.bound() {
			return fmt.Errorf("%d of the neighbour's %d calls fail, its p99 is %v", q.failed, q.calls, q.p99)
		}
		return nil
	})
	if err != nil {
		x.complain("afterwards the neighbour is not served as before: %v", err)
	}
	x.result.during = x.neighbour.between(start, end)
}

// bound is the most that the neighbour's 99th percentile may be.
func (x *trial) bound() time.Duration {
	return max(time.Duration(x.slower)*x.result.calm.p99, x.floor) + forgivenNaps*x.result.late
}

// check adds a complaint for each figure that breaks a promise.
func (x *trial) check() {
	r, q := x.result, x.result.during
	most := x.attack.peak
	if most == 0 {
		most = residentBytes
	}
	if r.peak > most {
		x.complain("%d MiB were resident, want at most %d", r.peak>>20, most>>20)
	}
	most = int64(x.attack.goroutines)
	if most == 0 {
		most = mostGoroutines
	}
	if more := r.vitals[1].Goroutines - r.vitals[0].Goroutines; int64(more) > most {
		x.complain("%d goroutines more than before, want at most %d", more, most)
	}
	if q.calls == 0 {
		x.complain("the neighbour made no call meanwhile")
		return
	}
	failed, what := q.failed, "failed"
	if x.attack.tolerant {
		failed, what = q.hung, "hung"
	}
	if float64(failed) > x.mostFailed*float64(q.calls)+float64(x.forgiven) {
		x.suspect("%d of the neighbour's %d calls %s, the first with: %s", failed, q.calls, what, x.neighbour.problem())
	}
	if !x.attack.unhurried && !x.attack.tolerant && q.p99 > x.bound() {
		x.suspect("the neighbour's p99 is %v, want at most %v: before it was %v, and naps ended up to %v late",
			q.p99.Round(time.Millisecond/10), x.bound().Round(time.Millisecond), r.calm.p99.Round(time.Millisecond/10),
			r.late.Round(time.Millisecond))
	}
}

// machine tells how long the machine keeps us from its cores.
type machine struct {
	stop, stopped chan struct{}
	latest        atomic.Int64 // in ns: by how much the latest nap was late
}

func watchMachine() *machine {
	m := &machine{stop: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(m.stopped)
		for {
			lay := time.Now()
			select {
			case <-time.After(nap):
				m.latest.Store(max(m.latest.Load(), int64(time.Since(lay)-nap)))
			case <-m.stop:
				return
			}
		}
	}()
	return m
}

// late is by how much the latest nap was late so far.
func (m *machine) late() time.Duration { return time.Duration(m.latest.Load()) }

// end stops watching.
func (m *machine) end() time.Duration {
	close(m.stop)
	<-m.stopped
	return m.late()
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	return text
}

// watch keeps the highest vitals of a service.
type watch struct {
	stop    chan struct{}
	stopped chan vitals
}

func watchVitals(s *service) *watch {
	w := &watch{stop: make(chan struct{}), stopped: make(chan vitals)}
	go func() {
		var highest vitals
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if v, err := s.kernelVitals(); err == nil { // else it has ended, which others see
				highest = highest.most(v)
			}
			if n, err := s.goroutines(); err == nil {
				highest = highest.most(vitals{Goroutines: n})
			}
			select {
			case <-tick.C:
			case <-w.stop:
				w.stopped <- highest
				return
			}
		}
	}()
	return w
}

func (w *watch) end() vitals {
	close(w.stop)
	return <-w.stopped
}
