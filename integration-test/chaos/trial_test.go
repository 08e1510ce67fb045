package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// times are those of a trial. After lasts longer, if need be, until the service
// is back.
type times struct {
	before, during, after time.Duration
	deadline              time.Duration // that callers give each call
	timeout               time.Duration // REDIS_TIMEOUT and MEMCACHE_TIMEOUT
	atOnce                int           // stores that have trials at the same time
}

// In short, other tests may have the machine at the same time, and what takes
// long need not be the service's doing: callers have more patience there. A call
// that hangs outlasts it all the same.
var (
	inShort = times{
		before: 700 * time.Millisecond, during: time.Second, after: time.Second,
		deadline: 2 * time.Second, timeout: 250 * time.Millisecond, atOnce: 4,
	}
	inFull = times{
		before: 2 * time.Second, during: 3 * time.Second, after: 2 * time.Second,
		deadline: 500 * time.Millisecond, timeout: 100 * time.Millisecond, atOnce: 2,
	}
)

const (
	// warmUp is for connections and the first windows, before anything counts.
	warmUp = 300 * time.Millisecond
	// steadily is how long calls must go well to be said to.
	steadily = time.Second
)

// env gives the store its timeout.
func (w times) env() []string {
	return []string{"REDIS_TIMEOUT=" + w.timeout.String(), "MEMCACHE_TIMEOUT=" + w.timeout.String()}
}

// attempts are the times that a trial is begun in which something goes wrong while
// the machine is busy, as calls show that fail before there is a fault, and short
// sleeps that end late. What is seen then need not be the service's doing; but
// what goes wrong each time is, and what breaks a limit.
const attempts = 4

// try has one fault on one store, and returns what was seen.
func try(t *testing.T, f *fault, s *store, with times) (c *cell) {
	t.Helper()
	for n := range attempts {
		machine := watchMachine()
		c = attempt(t, f, s, with)
		busy := machine.end()
		if n == attempts-1 || len(c.problems) == 0 || c.broken || !busy && !c.disturbed {
			break
		}
		t.Logf("the machine is busy, so this is tried again: %s", strings.Join(c.problems, "; "))
	}
	return c
}

func attempt(t *testing.T, f *fault, s *store, with times) *cell {
	t.Helper()
	c := &cell{fault: f, store: s.name, with: with}
	if f.virtual != nil {
		worst := f.virtual(t, s)
		c.virtual = &worst
		return c
	}
	rules, quotaRules := rulesFor(s.name, period), quotaRulesFor(s.name)
	x := &trial{store: s, keys: keysOf(rules)}
	host := ""
	if f.named {
		if _, err := namespaces(); err != nil {
			c.unmeasured = err.Error()
			return c
		}
		host, x.hosts = storeHost, filepath.Join(t.TempDir(), "hosts")
		putHost(t, x.hosts, "127.0.0.1")
	}
	s.stands(t)
	x.service = startService(t, [][]rule{rules, quotaRules}, append(s.env(t, host), with.env()...), x.hosts)

	defer x.service.stop(t)
	l := drive(t, dial(t, x.service.grpc), x.keys, with.deadline)
	defer l.end()
	q := connectProxies(t, x.service.grpc, keysOf(quotaRules))
	defer q.end()
	time.Sleep(warmUp)
	watch := watchVitals(x.service)
	c.at.begin = time.Now()
	time.Sleep(with.before)
	c.vitals[0] = watch.next(t)
	if n := count(l.between(c.at.begin, time.Now().Add(-with.timeout))); n.byStore*10 < n.all*9 {
		c.disturbed = true
		c.complain("before the fault the store decided %d of %d calls", n.byStore, n.all)
		watch.end()
		return c
	}

	c.at.fault = time.Now()
	o := f.begin(t, x)
	if f.effect != passing {
		time.Sleep(max(with.during, f.atLeast))
	}
	o.end()
	c.at.recovery = time.Now()
	awaitRecovery(l, c.at.recovery, with.after)
	q.awaitUnits(c.at.recovery)
	c.at.end = time.Now()
	c.vitals[1] = watch.end()
	c.vitals[2] = vitalsAtRest(x.service, c.vitals[0])
	l.end()
	q.end()
	if o.restore != nil {
		o.restore()
	}
	c.check(l)
	c.judgeQuotas(q)
	return c
}

// awaitRecovery returns when calls have succeeded for some time, or after a deadline.
func awaitRecovery(l *load, from time.Time, atLeast time.Duration) {
	time.Sleep(atLeast)
	_ = harness.Retry(harness.Deadline, func() error { // what came of it, the figures say
		// Calls in flight are ignored: they have no result yet.
		to := time.Now().Add(-l.deadline)
		if start := to.Add(-steadily); start.Before(from) || !wentWell(l.between(start, to)) {
			return errNotYet
		}
		return nil
	})
}

// wentWell tells whether the store decided nearly all. A machine that is busy
// makes a call wait for too long now and then.
func wentWell(calls []call) bool {
	n := count(calls)
	return n.all > 0 && nearlyAll(n.all-n.byStore, n.all)
}

func nearlyAll(bad, all int) bool { return bad*20 <= all }

// watch keeps the highest vitals of a service.
type watch struct {
	stop    chan struct{}
	stopped chan struct{}

	mu      sync.Mutex // guards what follows
	last    vitals
	highest vitals
	looks   int
}

func watchVitals(s *service) *watch {
	w := &watch{stop: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(w.stopped)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			if v, err := s.vitals(); err == nil { // else it was killed
				w.mu.Lock()
				w.last, w.highest, w.looks = v, w.highest.most(v), w.looks+1
				w.mu.Unlock()
			}
			select {
			case <-tick.C:
			case <-w.stop:
				return
			}
		}
	}()
	return w
}

// next is a look later than now.
func (w *watch) next(t *testing.T) vitals {
	t.Helper()
	begun := -1
	var v vitals
	harness.Await(t, harness.Deadline, "no vitals", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if begun < 0 {
			begun = w.looks
		}
		if v = w.last; w.looks == begun {
			return errNotYet
		}
		return nil
	})
	return v
}

func (w *watch) end() vitals {
	close(w.stop)
	<-w.stopped
	return w.highest
}

// vitalsAtRest returns the vitals once they are about those of before, or when that has
// had its time.
func vitalsAtRest(s *service, before vitals) (v vitals) {
	_ = harness.Retry(harness.Deadline, func() (err error) {
		if v, err = s.vitals(); err == nil && !v.about(before) {
			err = errors.New("more than before")
		}
		return err
	})
	return v
}

// onEvery gives each store its trials.
func onEvery(t *testing.T, atOnce int, each func(*testing.T, *store)) {
	t.Helper()
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("this test needs Linux: it looks into /proc")
	}
	if _, err := harness.BuiltService(); err != nil {
		t.Fatal(err)
	}
	t.Run("on", func(t *testing.T) {
		places := make(chan struct{}, atOnce)
		for _, name := range storeNames {
			t.Run(string(name), func(t *testing.T) {
				t.Parallel()
				places <- struct{}{}
				defer func() { <-places }()
				each(t, startStore(t, name))
			})
		}
	})
}

// report fails the test for what is wrong in a cell.
func (c *cell) report(t *testing.T) {
	t.Helper()
	for _, p := range c.problems {
		t.Error(p)
	}
	if c.unmeasured != "" {
		t.Log(c.unmeasured)
		return
	}
	if c.virtual == nil {
		t.Log(fmt.Sprint(c))
	}
}
