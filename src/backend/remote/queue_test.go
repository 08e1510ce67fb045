package remote

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"
)

const ms = time.Millisecond

// queueStep is one thing that happens.
type queueStep struct {
	add   string
	cost  time.Duration
	serve time.Duration
	pop   string
	back  string // with the cost of the rest
	drop  string
}

var queueCases = []struct {
	name  string
	steps []queueStep
}{
	{"the order of arrival, when all cost the same", []queueStep{
		{add: "a", cost: ms},
		{add: "b", cost: ms},
		{add: "c", cost: ms},
		{pop: "a"},
		{pop: "b"},
		{pop: "c"},
	}},
	{"a small one overtakes", []queueStep{
		{add: "large", cost: 25 * ms}, {add: "small", cost: 1}, {pop: "small"}, {pop: "large"},
	}},
	{"a large one that waited as long as it would have with equal shares goes first", []queueStep{
		{add: "large", cost: 10 * ms},
		{add: "x", cost: 5 * ms},
		{serve: 24 * ms}, // 12 ms for each
		{add: "small", cost: ms},
		{pop: "x"},
		{pop: "large"},
		{pop: "small"},
	}},
	{"but not yet", []queueStep{
		{add: "large", cost: 10 * ms},
		{add: "x", cost: 5 * ms},
		{serve: 16 * ms}, // 8 ms for each
		{add: "small", cost: ms},
		{pop: "x"},
		{pop: "small"},
		{pop: "large"},
	}},
	{"the rest is served before a newcomer of the same size", []queueStep{
		{add: "a", cost: 10 * ms},
		{serve: 2 * ms},
		{pop: "a"},
		{back: "a", cost: 8 * ms},
		{add: "b", cost: 10 * ms},
		{pop: "a"},
		{pop: "b"},
	}},
	{"the rest is served before what waited behind it, though that has waited for long", []queueStep{
		{add: "p", cost: 10 * ms},
		{add: "a", cost: 10 * ms},
		{add: "b", cost: 10 * ms},
		{serve: 10 * ms},
		{pop: "p"},
		{serve: 2 * ms},
		{pop: "a"},
		{back: "a", cost: 8 * ms},
		{pop: "a"},
		{pop: "b"},
	}},
	{"a newcomer that is smaller than the rest goes first", []queueStep{
		{add: "a", cost: 10 * ms},
		{serve: 2 * ms},
		{pop: "a"},
		{add: "b", cost: 7 * ms},
		{back: "a", cost: 8 * ms},
		{pop: "b"},
		{pop: "a"},
	}},
	{"dropped", []queueStep{
		{add: "a", cost: 1},
		{add: "b", cost: 2},
		{add: "c", cost: 3},
		{add: "d", cost: 4},
		{drop: "a"},
		{drop: "c"},
		{pop: "b"},
		{pop: "d"},
	}},
	{"less than nothing is nothing", []queueStep{
		{add: "a", cost: 0}, {add: "b", cost: -ms}, {serve: -ms}, {pop: "a"}, {pop: "b"},
	}},
	{"what was served before it was empty does not count", []queueStep{
		{add: "a", cost: ms},
		{serve: time.Hour},
		{pop: "a"},
		{add: "b", cost: 2 * ms},
		{add: "c", cost: ms},
		{pop: "c"},
		{pop: "b"},
	}},
}

func TestQueue(t *testing.T) {
	for _, tt := range queueCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var q FairQueue[string]
			for i, s := range tt.steps {
				switch {
				case s.add != "":
					q.Add(s.add, s.cost)
				case s.back != "":
					q.PutBack(s.back, s.cost)
				case s.drop != "":
					q.DropWhere(func(r string) bool { return r == s.drop })
				case s.pop != "":
					if head := q.Head(); head != s.pop {
						t.Fatalf("step %d: the head is %s, want %s", i, head, s.pop)
					}
					if got := q.Pop(); got != s.pop {
						t.Fatalf("step %d: got %s, want %s", i, got, s.pop)
					}
				default:
					q.RecordWork(s.serve)
				}
			}
			if q.Len() != 0 {
				t.Errorf("%d are left", q.Len())
			}
		})
	}
}

// job is a request on a server in virtual time.
type job struct {
	id            int
	arrives, left time.Duration
	shared        time.Duration // when it would be done with equal shares
}

// share returns when each job would be done if the server worked on all at once, to
// equal shares, in steps of 10 µs.
func share(jobs []job) {
	const step = 10 * time.Microsecond
	left := make([]time.Duration, len(jobs))
	for i := range jobs {
		left[i] = jobs[i].left
	}
	for now := time.Duration(0); ; now += step {
		var active []int
		waits := false
		for i := range jobs {
			if left[i] > 0 {
				waits = true
				if jobs[i].arrives <= now {
					active = append(active, i)
				}
			}
		}
		for _, i := range active {
			if left[i] -= step / time.Duration(len(active)); left[i] <= 0 {
				jobs[i].shared = now + step
			}
		}
		if !waits {
			return
		}
	}
}

// No request is done much later than with equal shares: none starves, and small ones
// do not wait for large ones.
func TestQueueIsFair(t *testing.T) {
	t.Parallel()
	const piece = 500 * time.Microsecond
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		var jobs []job
		for id := range 2 + random.IntN(12) {
			cost := time.Duration(1+random.IntN(20)) * 10 * time.Microsecond
			if random.IntN(3) == 0 {
				cost *= 100
			}
			jobs = append(jobs, job{id: id, arrives: time.Duration(random.IntN(40)) * ms, left: cost})
		}
		slices.SortFunc(jobs, func(a, b job) int { return int(a.arrives - b.arrives) })
		share(jobs)
		var q FairQueue[*job]
		next, now, done := 0, time.Duration(0), 0
		for done < len(jobs) {
			for ; next < len(jobs) && jobs[next].arrives <= now; next++ {
				q.Add(&jobs[next], jobs[next].left)
			}
			if q.Len() == 0 {
				now = jobs[next].arrives
				continue
			}
			j := q.Head()
			work := min(j.left, piece)
			q.RecordWork(work)
			q.Pop()
			now += work
			if j.left -= work; j.left > 0 {
				q.PutBack(j, j.left)
				continue
			}
			done++
			// What is under way is not interrupted.
			if late := now - j.shared; late > 2*piece {
				t.Errorf("seed %d: job %d was done at %v, with equal shares at %v", seed, j.id, now, j.shared)
			}
		}
	}
}

func TestQueueKeepsLittle(t *testing.T) {
	t.Parallel()
	var q FairQueue[*int]
	for range 10 * maxKeptQueueEntries {
		q.Add(new(int), 1)
	}
	for q.Len() > 1 {
		q.Pop()
	}
	q.DropWhere(func(*int) bool { return true })
	if cap(q.entries) > maxKeptQueueEntries {
		t.Errorf("an empty queue has room for %d", cap(q.entries))
	}
}

// Pace under a server at some distance, that takes so many times as long as estimated.
func TestPace(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		trip        time.Duration
		scale       float64
		least, most time.Duration // of a piece
	}{
		{"as estimated", 100 * time.Microsecond, 1, 2 * ms, 2200 * time.Microsecond},
		{"slow", 100 * time.Microsecond, 3, 690 * time.Microsecond, 800 * time.Microsecond},
		{"fast", 100 * time.Microsecond, 0.6, 3300 * time.Microsecond, 3700 * time.Microsecond},
		{
			"slower than pieces are made small for", 100 * time.Microsecond, 100, 520 * time.Microsecond,
			560 * time.Microsecond,
		},
		{"far away", 3 * ms, 1, 4900 * time.Microsecond, 5100 * time.Microsecond},
		{"at the end of the world", 200 * ms, 1, 1700 * time.Microsecond, 7 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var p Pace
			if got := p.MaxBatchCost(); got != BatchTime {
				t.Errorf("at first a piece is %v", got)
			}
			batch := func(cost time.Duration) { p.ObserveBatch(cost, tt.trip+time.Duration(float64(cost)*tt.scale)) }
			for range 100 {
				batch(time.Microsecond)
				batch(p.MaxBatchCost())
			}
			if got := p.MaxBatchCost(); got < tt.least || got > tt.most {
				t.Errorf("a piece is %v, want %v to %v", got, tt.least, tt.most)
			}
			with := p.MaxBatchCost()
			p.ForgetRoundTrip()
			if got := p.MaxBatchCost(); got >= with {
				t.Errorf("on a new connection a piece is %v after %v", got, with)
			}
		})
	}
}

// What a machine that stood still for a moment measured does no harm for long.
func TestPaceOfOutliers(t *testing.T) {
	t.Parallel()
	var p Pace
	p.ObserveBatch(BatchTime, time.Hour)
	p.ObserveBatch(BatchTime, 0)
	p.ObserveBatch(0, -1)
	for range 30 {
		p.ObserveBatch(BatchTime, BatchTime)
	}
	if got := p.MaxBatchCost(); got < BatchTime*9/10 {
		t.Errorf("a piece is %v", got)
	}
}

func BenchmarkQueue(b *testing.B) {
	for _, n := range []int{1, 16, 1000, 20_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			var q FairQueue[int]
			for i := range n {
				q.Add(i, time.Duration(i%97)*time.Microsecond)
			}
			i := 0
			for b.Loop() {
				q.RecordWork(time.Microsecond)
				v := q.Pop()
				i++
				q.PutBack(v, time.Duration(i%97)*time.Microsecond)
			}
		})
	}
}

func BenchmarkPace(b *testing.B) {
	b.ReportAllocs()
	var p Pace
	for b.Loop() {
		p.ObserveBatch(p.MaxBatchCost(), BatchTime)
	}
}
