package health

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/src/rules"
	"ratelimit/src/service/store"
)

// audienceTest is a State, and what each audience reads about it.
type audienceTest struct {
	name                      string
	change                    func(*State)
	stored                    store.State // without pools: a pool that answers
	callers, operators        string      // the reason
	callersNote, operatorNote string      // of the components, joined; empty: not compared
}

func audienceTests(at time.Time, refused rules.Problems, lost, slow *store.Error) []audienceTest {
	return []audienceTest{
		{name: "well"},
		{
			name: "the first rules are refused",
			change: func(s *State) {
				s.rules.sources[0].inForce, s.rules.sources[0].lastLoadErr, s.rules.sources[0].lastRefusedAt = nil, refused, at
			},
			callers:   "no rules are loaded: refused at 2026-10-01T12:00:00Z",
			operators: `no rules are loaded: refused at 2026-10-01T12:00:00Z: /srv/secret.yaml:3:5: unknown key "hunter2" (and more, see the log)`,
		},
		{
			name:         "later rules are refused",
			change:       func(s *State) { s.rules.sources[0].lastLoadErr, s.rules.sources[0].lastRefusedAt = refused[1:], at },
			callersNote:  "2 domains, the last load was refused at 2026-10-01T12:00:00Z",
			operatorNote: `2 domains, the last load was refused at 2026-10-01T12:00:00Z: /srv/secret.yaml:4:5: unknown key "hunter3"`,
		},
		{
			name: "no stream, no rules",
			change: func(s *State) {
				s.rules.sources[0].inForce, s.rules.sources[0].streamErr = nil, errors.New("xds server 10.1.2.3:18000: refused")
			},
			callers:   "no rules are loaded: there is no stream to the management server",
			operators: "no rules are loaded: xds server 10.1.2.3:18000: refused",
		},
		{
			name:         "no stream any more",
			change:       func(s *State) { s.rules.sources[0].streamErr = errors.New("xds server 10.1.2.3:18000: refused") },
			callersNote:  "2 domains, there is no stream to the management server",
			operatorNote: "2 domains, xds server 10.1.2.3:18000: refused",
		},
		{
			name: "one of two sources has no rules",
			change: func(s *State) {
				s.AddSource("xds").streamErr = errors.New("xds server 10.1.2.3:18000: refused")
			},
			callers:      "no rules are loaded: there is no stream to the management server",
			operators:    "no rules are loaded: xds server 10.1.2.3:18000: refused",
			callersNote:  "2 domains|2 domains|0 domains",
			operatorNote: "2 domains|2 domains|0 domains",
		},
		{
			name: "one of two sources is refused, and away",
			change: func(s *State) {
				away := s.AddSource("xds")
				away.inForce, away.domainCount, away.ruleCount = &InForce{Version: "7"}, 3, 9
				away.lastLoadErr, away.lastRefusedAt = refused[1:], at
				away.streamErr = errors.New("xds server 10.1.2.3:18000: refused")
			},
			callersNote: "5 domains|2 domains|3 domains, version 7, the last load was refused at 2026-10-01T12:00:00Z, there " +
				"is no stream to the management server",
			operatorNote: `5 domains|2 domains|3 domains, version 7, the last load was refused at 2026-10-01T12:00:00Z: /srv/secret.yaml:4:5: unknown key "hunter3", ` +
				"xds server 10.1.2.3:18000: refused",
		},
		{
			name:      "the store was not asked",
			stored:    silent(&store.Error{ForCallers: "not yet", ForOperators: "not yet"}),
			callers:   "not yet",
			operators: "not yet",
		},
		{
			name:      "the store is away",
			stored:    silent(lost),
			callers:   "Redis does not answer",
			operators: "Redis does not answer: dial tcp 10.1.2.3:6379: connection refused",
		},
		{
			name:      "the store is too far away",
			stored:    silent(slow),
			callers:   "Redis answers in 61 ms, REDIS_TIMEOUT is 50 ms",
			operators: "Redis answers in 61 ms, REDIS_TIMEOUT is 50 ms: set it to 130ms or more (10.1.2.3:6379)",
		},
		{
			name:         "the store is away, and need not be there",
			stored:       store.State{Pools: silent(lost).Pools, WorksAlone: true},
			callersNote:  "2 domains|Redis does not answer; on_store_failure decides",
			operatorNote: "2 domains|Redis does not answer: dial tcp 10.1.2.3:6379: connection refused; on_store_failure decides",
		},
		{
			name:      "divvy's port is taken",
			change:    func(s *State) { s.latePortErr = errors.New("the divvy port 10.1.2.3:8321 is taken") },
			callers:   "divvy's port is not open",
			operators: "the divvy port 10.1.2.3:8321 is taken",
		},
	}
}

// silent returns the state of a store that does not answer.
func silent(err *store.Error) store.State {
	return store.State{Pools: []store.PoolState{{Name: "redis_pool", Err: err, HasAnswered: err == nil}}}
}

// Callers read the class and the time of a problem, operators all of it.
func TestHealthAudiences(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 10, 1, 14, 0, 0, 0, time.FixedZone("CEST", 7200))
	refused := rules.Problems{
		{Pos: rules.Pos{File: "/srv/secret.yaml", Line: 3, Col: 5}, Message: `unknown key "hunter2"`},
		{Pos: rules.Pos{File: "/srv/secret.yaml", Line: 4, Col: 5}, Message: `unknown key "hunter3"`},
	}
	lost := &store.Error{
		ForCallers:   "Redis does not answer",
		ForOperators: "Redis does not answer: dial tcp 10.1.2.3:6379: connection refused",
	}
	slow := &store.Error{
		ForCallers:   "Redis answers in 61 ms, REDIS_TIMEOUT is 50 ms",
		ForOperators: "Redis answers in 61 ms, REDIS_TIMEOUT is 50 ms: set it to 130ms or more (10.1.2.3:6379)",
	}
	for _, tt := range audienceTests(at, refused, lost, slow) {
		s := New(Config{})
		files := s.AddSource("files")
		files.inForce, files.domainCount, files.ruleCount = new(InForce), 2, 5
		s.WatchStore(func() store.State { return tt.stored })
		if tt.stored.Pools == nil {
			tt.stored = silent(nil)
		}
		if tt.change != nil {
			s.update(func() { tt.change(s) })
		}
		for a, want := range map[Audience][2]string{
			Callers:   {tt.callers, tt.callersNote},
			Operators: {tt.operators, tt.operatorNote},
		} {
			if got := s.UnhealthyReason(a); got != want[0] {
				t.Errorf("%s: got %q, want %q", tt.name, got, want[0])
			}
			var notes, reasons []string
			for _, c := range s.Components(a) {
				if c.Note != "" {
					notes = append(notes, c.Note)
				}
				if c.NotReadyReason != "" {
					reasons = append(reasons, c.NotReadyReason)
				}
			}
			if got := strings.Join(notes, "|"); want[1] != "" && got != want[1] {
				t.Errorf("%s: notes %q, want %q", tt.name, got, want[1])
			}
			if got := strings.Join(reasons, "|"); got != want[0] {
				t.Errorf("%s: components say %q, want %q", tt.name, got, want[0])
			}
		}
	}
}

// OnChange and OnReady are called without the lock, so they may read the state. The last call of OnChange has the
// newest state.
func TestHealthTellsWithoutLock(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	lateAddr := net.TCPAddr{Port: 7}
	last, said := true, 0 // need no lock: one call at a time
	s.WatchStore(func() store.State { return silent(nil) })
	files := s.AddSource("files")
	s.events.OnChange = func(ok bool) { _ = s.Components(Operators); last = ok }
	s.events.OnReady = func(_ map[string]any, late net.Addr) {
		if said++; late != net.Addr(&lateAddr) || s.UnhealthyReason(Operators) == "" {
			t.Errorf("the late address is %v", late)
		}
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 500 {
				s.update(func() {
					if files.inForce = nil; (i+n)%2 == 0 {
						files.inForce = new(InForce)
					}
				})
			}
		})
	}
	all.Wait()
	s.update(func() {
		files.inForce, s.rules.firstLoadFields, s.latePortAddr = nil, map[string]any{}, &lateAddr
	})
	if last || said != 1 {
		t.Errorf("told last that healthy is %t; ready was said %d times", last, said)
	}
}
