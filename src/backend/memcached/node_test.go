package memcached

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// queueNode is a node without workers: a test takes its counters one by one.
func queueNode(most int) *node {
	return &node{store: &Store{}, most: most, counters: make(map[string]*counter), end: make(chan struct{})}
}

// ask puts a call with one increment for each key, and returns it.
func ask(t *testing.T, n *node, keys ...string) *call {
	t.Helper()
	c := new(call)
	c.Init()
	c.Reset()
	c.Hold() // as Store.give does
	c.left.Store(int32(len(keys)))
	for _, key := range keys {
		from := len(c.keys)
		c.keys = append(c.keys, key...)
		c.ops = append(c.ops, op{call: c, verb: add, amount: 1, most: 1 << 40, from: from, to: len(c.keys)})
	}
	for i := range c.ops {
		c.part(n).push(&c.ops[i])
	}
	if err := n.put(c.parts[0]); err != nil {
		t.Fatal(err)
	}
	return c
}

// visits works on counters until none is left, and returns key:ops of each.
func visits(n *node) (list []string) {
	w := &worker{wake: make(chan struct{}, 1)}
	for n.waiting > 0 && n.next(w) {
		list = append(list, fmt.Sprintf("%s:%d", w.counter.key, len(w.run)))
		for _, o := range append(w.run, w.left...) {
			o.settle(0, nil, &n.store.stats)
		}
		n.leave(w)
	}
	if c := n.ready(); c != nil { // parts of taken ops leave the queue here
		list = append(list, "unexpected "+c.key)
	}
	return list
}

// A call with few keys does not wait for all keys of one with many.
func TestSmallCallsOvertakeLargeOnes(t *testing.T) {
	t.Parallel()
	many := func(prefix string) (keys []string) {
		for i := range 1000 {
			keys = append(keys, fmt.Sprint(prefix, i))
		}
		return keys
	}
	for _, tt := range []struct {
		name  string
		calls [][]string
		key   string
		want  int // the latest visit at which key is counted
	}{
		{"alone", [][]string{{"k"}}, "k", 0},
		{"behind a large one", [][]string{many("a"), {"k"}}, "k", 0},
		{"behind sixteen", append(slices.Repeat([][]string{many("a")}, 16), []string{"k"}), "k", 0},
		{"on the last key of a large one", [][]string{many("a"), {"a999"}}, "a999", 0},
		{"of ten keys, the last", [][]string{many("a"), {"b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9"}}, "b9", 9},
		{"the large one in its own order", [][]string{many("a")}, "a500", 500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := queueNode(1 << 20)
			var ops int
			var calls []*call
			for _, keys := range tt.calls {
				calls = append(calls, ask(t, n, keys...))
				ops += len(keys)
			}
			order := visits(n)
			at := slices.IndexFunc(order, func(v string) bool { return strings.HasPrefix(v, tt.key+":") })
			if at < 0 || at > tt.want {
				t.Errorf("visit %d of %s, want at most %d; the first: %v", at, tt.key, tt.want, order[:min(5, len(order))])
			}
			for i, c := range calls {
				if c.left.Load() != 0 || !c.Release() {
					t.Errorf("call %d: %d ops are left, or something still holds it", i, c.left.Load())
				}
			}
			if n.waiting != 0 || n.queue.Len() != 0 || len(n.counters) != 0 {
				t.Errorf("%d ops, %d parts, %d counters stay behind", n.waiting, n.queue.Len(), len(n.counters))
			}
		})
	}
}

// Calls on one key become one command, whichever of them has its turn.
func TestOneCommandForAKey(t *testing.T) {
	t.Parallel()
	n := queueNode(1 << 20)
	ask(t, n, "a", "k", "b")
	ask(t, n, "k")
	ask(t, n, "k", "c")
	got := strings.Join(visits(n), " ")
	if want := "k:3 c:1 a:1 b:1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What does not fit is refused as a whole; a call that is too large by itself is
// taken when nothing else waits.
func TestAFullQueueRefusesWholeCalls(t *testing.T) {
	t.Parallel()
	n := queueNode(2)
	ask(t, n, "a", "b", "c")
	c := new(call)
	c.ops = []op{{call: c}}
	p := &part{call: c, node: n}
	p.push(&c.ops[0])
	if err := n.put(p); err != ErrBusy || p.count != 1 || n.waiting != 3 {
		t.Errorf("got %v with %d ops in the part and %d waiting, want ErrBusy, 1 and 3", err, p.count, n.waiting)
	}
	if got := visits(n); len(got) != 3 {
		t.Errorf("visited %v", got)
	}
}

// A call whose ops stand in the queue while the server answers others is an overload,
// not an outage.
func TestOverloadIsNoOutage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		visits  int   // counters that a worker took before the caller's time passed
		replies []int // ms after the call came
		want    bool
	}{
		{"nothing was answered", 0, nil, false},
		{"all were sent, and not answered", 2, nil, false},
		{"one waits while others are answered", 1, []int{10, 20, 40}, true},
		{"both wait while others are answered", 0, []int{10, 20, 40}, true},
		{"all were sent, and others are answered", 2, []int{10, 20, 40}, false},
		{"both wait, and the server stands still soon", 0, []int{1, 2, 3}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := queueNode(10)
			c := new(call)
			c.Init()
			c.Reset()
			c.keys = []byte("ab")
			c.ops = []op{{call: c, from: 0, to: 1}, {call: c, from: 1, to: 2}}
			for i := range c.ops {
				c.part(n).push(&c.ops[i])
			}
			if err := n.put(c.parts[0]); err != nil {
				t.Fatal(err)
			}
			w := new(worker)
			for range tt.visits {
				n.next(w)
			}
			came := c.parts[0].waiting.Since
			for _, ms := range tt.replies {
				n.progress.Answered(came.Add(time.Duration(ms) * time.Millisecond))
			}
			if got := c.overloaded(came.Add(50 * time.Millisecond)); got != tt.want {
				t.Errorf("overloaded: %v, want %v", got, tt.want)
			}
		})
	}
	if causeOf(ErrOverload) != "overload" || errors.Is(ErrOverload, ErrTimeout) {
		t.Errorf("ErrOverload is counted as %s", causeOf(ErrOverload))
	}
}
