package remote

import "time"

// Queue orders the requests that wait for one server, so that small requests
// overtake large ones and no request starves. A request has a cost: the time that
// the server is expected to need for it. Requests are served one after the other, in the
// order in which they would finish if the server shared its time equally among all
// that wait:
//
//	Add(a, 25ms), Add(b, 25ms)   the order is a, b
//	Serve(2ms)                   a got 2 ms, which is 1 ms for each of the two
//	Add(c, 10µs)                 would finish soonest: c, a, b
//
// Equal shares would delay every large request to the end. This order finishes the
// first of them early, and the last no later.
//
// The owner takes the Head, has the server work on a piece of it, calls Serve with
// the cost of that piece, and then Pop. If something of the request is left, the owner
// calls Return with the cost of the rest once the piece is done. What came meanwhile and is
// smaller than the rest then goes first, but what waited before does not: large
// requests that took turns would all finish late.
//
// The zero value is an empty queue. A Queue has neither lock nor clock: its owner
// guards it.
type Queue[T any] struct {
	heap  []turn[T]
	share float64 // ns that each request would have had since the queue was empty
	added uint64
	last  turn[T] // the place of the request that was popped last, without the request
}

// turn is a request's place in a Queue.
type turn[T any] struct {
	request T
	finish  float64 // the share at which it would finish
	added   uint64  // decides between equals: the one that came first
}

// Len returns how many requests wait.
func (q *Queue[T]) Len() int { return len(q.heap) }

// Add adds a request. A negative cost counts as 0.
func (q *Queue[T]) Add(request T, cost time.Duration) {
	q.added++
	q.heap = append(q.heap, turn[T]{request, q.share + float64(max(cost, 0)), q.added})
	q.up(len(q.heap) - 1)
}

// Return puts the request that was popped last back, with the cost of what is left of
// it. It comes before those that it came before.
func (q *Queue[T]) Return(request T, cost time.Duration) {
	finish := q.share + float64(max(cost, 0))
	if q.last.added > 0 {
		finish = min(finish, q.last.finish)
	}
	q.heap = append(q.heap, turn[T]{request, finish, q.last.added})
	q.up(len(q.heap) - 1)
}

// Head returns the request whose turn it is. It panics if the queue is empty.
func (q *Queue[T]) Head() T { return q.heap[0].request }

// Serve says that the server was given work of that cost, for whichever request.
func (q *Queue[T]) Serve(cost time.Duration) {
	if n := len(q.heap); n > 0 {
		q.share += float64(max(cost, 0)) / float64(n)
	}
}

// Pop removes the Head and returns it. It panics if the queue is empty.
func (q *Queue[T]) Pop() T {
	head := q.heap[0].request
	q.last = turn[T]{finish: q.heap[0].finish, added: q.heap[0].added}
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap[last] = turn[T]{}
	q.heap = q.heap[:last]
	q.down(0)
	q.rest()
	return head
}

// Drop removes the requests for which gone returns true. It takes time linear in
// the length of the queue.
func (q *Queue[T]) Drop(gone func(T) bool) {
	kept := q.heap[:0]
	for _, t := range q.heap {
		if !gone(t.request) {
			kept = append(kept, t)
		}
	}
	clear(q.heap[len(kept):])
	q.heap = kept
	for i := len(kept)/2 - 1; i >= 0; i-- {
		q.down(i)
	}
	q.rest()
}

// rest starts anew when nothing waits, so that sums stay small and exact.
func (q *Queue[T]) rest() {
	if len(q.heap) == 0 {
		q.share = 0
		if cap(q.heap) > maxIdleTurns {
			q.heap = nil
		}
	}
}

// maxIdleTurns is how many places an empty queue keeps for later.
const maxIdleTurns = 4096

func (q *Queue[T]) before(i, j int) bool {
	a, b := &q.heap[i], &q.heap[j]
	return a.finish < b.finish || a.finish == b.finish && a.added < b.added
}

func (q *Queue[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !q.before(i, parent) {
			return
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

func (q *Queue[T]) down(i int) {
	for {
		first := 2*i + 1
		if first >= len(q.heap) {
			return
		}
		if first+1 < len(q.heap) && q.before(first+1, first) {
			first++
		}
		if !q.before(first, i) {
			return
		}
		q.heap[i], q.heap[first] = q.heap[first], q.heap[i]
		i = first
	}
}
