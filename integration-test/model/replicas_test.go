package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/fallback"
	"ratelimit/src/backend/memory"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// replicas are services that share one Redis, each with a way to it of its own, and
// count by themselves what it does not answer.
type replicas struct {
	rng  *rand.Rand
	all  []*service
	cut  []Fault // what is wrong with the way of each
	only []Fault // the faults there are
	rule Rule
	at   time.Duration

	// What they have let pass, one after the other, and what one service would have.
	passed []admission
	alone  int
	exact  counter
}

// admission is a unit that has passed. Counted: the store was well, and so has counted it.
type admission struct {
	at      time.Duration
	counted bool
}

// replicaLab is the store of one.
type replicaLab struct {
	*redisLab
	back *fallback.Store
}

func (l *replicaLab) backend() backend.Backend { return l.back }

// TestRandomReplicas cuts off replicas at random. What they let pass in all is never
// more than package fallback says, and exactly the limit without faults. When all is
// well again nothing that the store has counted is forgotten.
func TestRandomReplicas(t *testing.T) {
	t.Parallel()
	server, first := redistest.Start(t, redistest.Options{}), firstSeed()
	var ways []*redisServer
	for range 3 {
		ways = append(ways, &redisServer{server, harness.StartProxy(t, server.Addr)})
	}
	more, n, passed := enough(4), uint64(0), 0
	for ; more(n); n++ {
		rs, err := openReplicas(first+n, ways)
		if err == nil {
			err = rs.play()
		}
		passed += len(rs.passed)
		if err := rs.close(); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatalf("seed %d: %d replicas, %v, faults %v: %v", first+n, len(rs.all), &rs.rule, rs.only, err)
		}
	}
	t.Logf("%d units have passed in %d schedules", passed, n)
}

// openReplicas is a seed's; close ends also what an error leaves.
func openReplicas(seed uint64, ways []*redisServer) (*replicas, error) {
	rng := rand.New(rand.NewPCG(seed, 0x5eed))
	rs := &replicas{rng: rng, rule: Rule{Key: "a", Limits: []Limit{{
		Kind: []Kind{Fixed, Fixed, Sliding}[rng.IntN(3)], Max: []int64{2, 5, 10, 20}[rng.IntN(4)],
		Period: time.Hour, Fallback: "local", // by the clock on the wall, no counter ends meanwhile
	}}}}
	rs.only = [][]Fault{nil, {Down}, {Down}, {Down, Lost, Stall, Reset}}[rng.IntN(4)]
	if rs.rule.Limits[0].Kind == Sliding {
		// What is stalled arrives later with the time of then, as if Redis' clock had stepped back.
		rs.only = slices.DeleteFunc(rs.only, func(f Fault) bool { return f == Stall })
	}
	ways = ways[:2+rng.IntN(2)]
	store, prefix := []string{"redis", "cached-redis"}[rng.IntN(2)], newPrefix()
	for _, way := range ways {
		opened, err := way.open(&Script{Store: store})
		if err != nil {
			return rs, err
		}
		l := &replicaLab{redisLab: opened.(*redisLab)}
		l.back, err = fallback.New(l.front, fallback.Config{
			Replicas: func() int { return len(ways) }, MaxBytes: memory.MinBytes,
		})
		if err != nil {
			return rs, err
		}
		s, err := start(l, prefix)
		if err != nil {
			return rs, err
		}
		rs.all, rs.cut = append(rs.all, s), append(rs.cut, None)
		if err := s.Reload(Rules{rs.rule}.YAML()); err != nil {
			return rs, err
		}
		if err := s.Fault(None); err != nil {
			return rs, err
		}
	}
	return rs, nil
}

func (rs *replicas) close() (err error) {
	for _, s := range rs.all {
		for _, end := range []func() error{s.close, s.lab.close} {
			if ended := end(); err == nil {
				err = ended
			}
		}
	}
	return err
}

// play makes 150 steps, heals all and looks at what is left.
func (rs *replicas) play() error {
	for step := range 150 {
		var err error
		switch n := rs.rng.IntN(100); {
		case n < 10:
			rs.at += time.Duration(rs.rng.Int64N(int64(rs.rule.Limits[0].Period / 2)))
		case n < 30 && len(rs.only) > 0:
			i := rs.rng.IntN(len(rs.all))
			if rs.cut[i] == None {
				rs.cut[i] = rs.only[rs.rng.IntN(len(rs.only))]
			} else {
				rs.cut[i] = None
			}
			err = rs.all[i].Fault(rs.cut[i])
		default:
			err = rs.ask(1 + rs.rng.IntN(6+int(rs.rule.Limits[0].Max)/2))
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
	}
	for i, s := range rs.all {
		if err := s.Fault(None); err != nil {
			return fmt.Errorf("replica %d: %w", i, err)
		}
	}
	return rs.left()
}

// ask asks for a unit so often at once, wherever.
func (rs *replicas) ask(often int) error {
	l := &rs.rule.Limits[0]
	each := make([][]Ask, len(rs.all))
	for range often {
		i := rs.rng.IntN(len(each))
		each[i] = append(each[i], Ask{{Key: rs.rule.Key, Value: "1", Amount: 1}})
		if !rs.exact.apply(l, int64(rs.at), 1).over {
			rs.alone++
		}
	}
	answers := make([][]*Answer, len(each))
	var asked sync.WaitGroup
	for i, s := range rs.all {
		asked.Go(func() { answers[i] = s.Ask(Start.Add(rs.at), each[i]) })
	}
	asked.Wait()
	for i := range answers {
		for _, a := range answers[i] {
			if a.Failed {
				return fmt.Errorf("replica %d at %v: %v", i, rs.at, a)
			}
			if !a.Over {
				rs.passed = append(rs.passed, admission{rs.at, rs.cut[i] == None})
			}
		}
	}
	if len(rs.only) == 0 && len(rs.passed) != rs.alone {
		return fmt.Errorf("%d passed by %v without a fault, want %d", len(rs.passed), rs.at, rs.alone)
	}
	if n, most := rs.counting(func(admission) bool { return true }), 2*l.Max+int64(len(rs.all))-1; n > most {
		return fmt.Errorf("%d passed in the window of %v, at most %d may", n, rs.at, most)
	}
	return nil
}

// counting is how much of what has passed matters in the window that the clock shows.
func (rs *replicas) counting(matters func(admission) bool) (n int64) {
	l := &rs.rule.Limits[0]
	counts := inWindow(l, int64(rs.at))
	if l.Kind == Sliding {
		counts = sliding{}.recent(l, int64(rs.at))
	}
	for _, a := range rs.passed {
		if matters(a) && counts(&hit{at: int64(a.at)}) {
			n++
		}
	}
	return n
}

// left looks at what the store has left, which it is the same for all to say: no more than it has not let
// pass. It never counts what replicas let pass by themselves. A fixed window knows exactly, where no reply was lost.
func (rs *replicas) left() error {
	l := &rs.rule.Limits[0]
	want, lost := max(l.Max-rs.counting(func(a admission) bool { return a.counted }), 0), len(rs.only) > 1
	for i, s := range rs.all {
		a := s.Ask(Start.Add(rs.at), []Ask{{{Key: rs.rule.Key, Value: "1", Amount: 0}}})[0]
		if a.Failed {
			return fmt.Errorf("replica %d: %v", i, a)
		}
		if got := a.Statuses[0].Remaining; got > want || got < want && l.Kind == Fixed && !lost {
			return fmt.Errorf("replica %d: %d are left at %v, want %d", i, got, rs.at, want)
		}
	}
	return nil
}
