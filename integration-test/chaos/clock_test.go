package chaos

import (
	"context"
	"fmt"
	"testing"
	"time"

	"ratelimit/src/backend"
	memcachedstore "ratelimit/src/backend/memcached"
	redisstore "ratelimit/src/backend/redis"
	rediscredentials "ratelimit/src/backend/redis/credentials"
	"ratelimit/src/backend/remote"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/limitertest"
)

// clockPeriod is that of the rules here, longer than the test takes: the store
// lets counters go by its own clock.
const clockPeriod = time.Hour

// clockSteps are what the clock does, in such a way that it comes back to times
// it has seen.
var clockSteps = []struct {
	at time.Duration // after the first
	// fresh: nothing of what was used up counts any more. The hits of a bucket and of a log came back with the clock
	// at the third step, so that they do not refuse for five windows more, and have expired at the fifth. So have holds.
	fresh, freshBucket bool
}{
	{at: 0, fresh: true},
	{at: 5 * clockPeriod, fresh: true},
	{at: 0},
	{at: -clockPeriod / 2}, // where the window of fixed windows began
	{at: 5 * clockPeriod, freshBucket: true},
	{at: 9 * clockPeriod, fresh: true},
}

// steppingClock is a fault that has no phases: at each step twice as many
// are asked for as a limit lets through.
//
// The clock cannot be set for one program alone, so the limiter and the store are
// in the test's own process, which tells them the time with each request.
var steppingClock = fault{
	name: "clock steps", does: "the clock goes forward five windows, back, half a window further, and forward again; in " +
		"the test's own process, with the time in each request",
	short: single, virtual: stepClock,
}

func stepClock(t *testing.T, s *store) fullness {
	t.Helper()
	var worst fullness
	list := rulesFor(s.name, clockPeriod)
	l := open(t, s, list)
	for _, r := range list {
		start := time.Now().Truncate(clockPeriod).Add(clockPeriod / 2)
		// Another value each time: a counter outlives the test that made it.
		value := fmt.Sprint("clock", start.UnixNano())
		had := 0 // of the limit, since it was whole
		days := make(map[time.Time]int)
		for n, step := range clockSteps {
			now := start.Add(step.at)
			day, _ := calendar.windowAt(now)
			switch {
			case r.kind == calendar:
				had = days[day]
			case step.fresh, step.freshBucket && (r.kind == bucket || r.kind == log || r.kind.isHeld()):
				had = 0
			}
			had += admits(t, l, r, value, now)
			days[day] = had
			f := fullness{admitted: had, most: limit}
			if f.exceeded() {
				t.Errorf("%s, step %d: %d were admitted where %d may be", r.name, n+1, f.admitted, f.most)
			}
			if step.fresh && had == 0 {
				t.Errorf("%s, step %d: nothing was admitted", r.name, n+1)
			}
			if f.fuller(worst) {
				worst = f
			}
		}
	}
	return worst
}

// admits is how many of twice the limit pass at an instant.
func admits(t *testing.T, l *limiter.Limiter, r rule, value string, now time.Time) (n int) {
	t.Helper()
	request := limiter.Request{
		Domain:      []byte(domain),
		Descriptors: []limiter.Descriptor{{Entries: []rules.Entry{{Key: []byte(r.name), Value: []byte(value)}}}},
		Now:         now,
	}
	var answer limiter.Answer
	for i := range 2 * limit {
		if r.kind.isHeld() {
			id := fmt.Sprint(now.UnixNano(), "-", i)
			request.Descriptors[0].Entries = append(request.Descriptors[0].Entries[:1],
				rules.Entry{Key: []byte(holdIDKey), Value: []byte(id)})
		}
		if err := l.Check(t.Context(), &request, &answer); err != nil {
			t.Fatal(err)
		}
		if !answer.Over {
			n++
		}
	}
	return n
}

// open is a limiter on the store, in this process.
func open(t *testing.T, s *store, list []rule) *limiter.Limiter {
	t.Helper()
	const timeout = 5 * time.Second // nothing is broken here but the clock
	var backend interface {
		backend.Backend
		Run(context.Context) error
		Ping(context.Context) error
	}
	var err error
	if s.name == memcached {
		backend, err = memcachedstore.New(memcachedstore.Config{
			Servers: []string{s.way.Addr},
			Config:  remote.Config{Timeout: timeout},
		})
	} else {
		c := redisstore.Config{
			Credentials: rediscredentials.PerConnection(s.credentials), Config: remote.Config{Timeout: timeout},
		}
		switch s.name {
		case sentinel:
			c.Sentinel = &redisstore.Sentinel{Primary: s.sentinel.PrimaryName, Addrs: s.sentinel.SentinelAddrs}
		case cluster:
			c.Cluster = s.cluster.Addrs
		default:
			c.Addr = s.single.PublicAddr()
		}
		backend, err = redisstore.New(c)
	}
	if err != nil {
		t.Fatal(err)
	}
	set := limitertest.Rules(t, ruleFile(list))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- backend.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	harness.Await(t, harness.Deadline, "the store does not answer", func() error { return backend.Ping(t.Context()) })
	l := limiter.New(limiter.Config{Backend: backend})
	l.UseRules(set)
	return l
}
