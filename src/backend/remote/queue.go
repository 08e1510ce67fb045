package remote

import (
	"container/heap"
	"time"
)

// Queue orders the requests that wait for one server, so that small requests overtake
// large ones and no request starves. The cost of a request is the time that the server
// is expected to need. Requests are served in the order in which they would finish if
// the server shared its time equally among all that wait:
//
//	Add(a, 25ms), Add(b, 25ms)   the order is a, b
//	Serve(2ms)                   a got 2 ms, which is 1 ms for each of the two
//	Add(c, 10µs)                 would finish soonest: c, a, b
//
// Equal shares would delay every large request to the end. This order finishes the first
// of them early, and the last no later.
//
// The owner takes the Head, has the server work on a piece of it, calls Serve with the
// cost of that piece, and then Pop. If something of the request is left, the owner calls
// Return once the piece is done.
//
// The zero value is an empty queue. A Queue has neither lock nor clock.
type Queue[T any] struct {
	turns turns[T]
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

// turns is a heap. Only heap.Init and heap.Fix are used, which move no values through
// interfaces.
type turns[T any] []turn[T]

func (t turns[T]) Len() int      { return len(t) }
func (t turns[T]) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t turns[T]) Less(i, j int) bool {
	return t[i].finish < t[j].finish || t[i].finish == t[j].finish && t[i].added < t[j].added
}
func (*turns[T]) Push(any) {}
func (*turns[T]) Pop() any { return nil }

// Len returns how many requests wait.
func (q *Queue[T]) Len() int { return len(q.turns) }

// Add adds a request. A negative cost counts as 0.
func (q *Queue[T]) Add(request T, cost time.Duration) {
	q.added++
	q.insert(turn[T]{request, q.share + float64(max(cost, 0)), q.added})
}

// Return puts the request that was popped last back, with the cost of what is left of
// it. It comes before those that it came before: large requests that took turns would
// all finish late.
func (q *Queue[T]) Return(request T, cost time.Duration) {
	finish := q.share + float64(max(cost, 0))
	if q.last.added > 0 {
		finish = min(finish, q.last.finish)
	}
	q.insert(turn[T]{request, finish, q.last.added})
}

func (q *Queue[T]) insert(t turn[T]) {
	q.turns = append(q.turns, t)
	heap.Fix(&q.turns, len(q.turns)-1)
}

// Head returns the request whose turn it is. It panics if the queue is empty.
func (q *Queue[T]) Head() T { return q.turns[0].request }

// Serve says that the server was given work of that cost, for whichever request.
func (q *Queue[T]) Serve(cost time.Duration) {
	if n := len(q.turns); n > 0 {
		q.share += float64(max(cost, 0)) / float64(n)
	}
}

// Pop removes the Head and returns it. It panics if the queue is empty.
func (q *Queue[T]) Pop() T {
	head := q.turns[0]
	q.last = turn[T]{finish: head.finish, added: head.added}
	last := len(q.turns) - 1
	q.turns.Swap(0, last)
	q.turns[last] = turn[T]{}
	q.turns = q.turns[:last]
	if last > 1 {
		heap.Fix(&q.turns, 0)
	}
	q.resetIfEmpty()
	return head.request
}

// Drop removes the requests for which gone returns true. It takes time linear in the
// length of the queue.
func (q *Queue[T]) Drop(gone func(T) bool) {
	kept := q.turns[:0]
	for _, t := range q.turns {
		if !gone(t.request) {
			kept = append(kept, t)
		}
	}
	clear(q.turns[len(kept):])
	q.turns = kept
	heap.Init(&q.turns)
	q.resetIfEmpty()
}

// maxIdleTurns is how many places an empty queue keeps for later.
const maxIdleTurns = 4096

// resetIfEmpty starts anew when nothing waits, so that sums stay small and exact.
func (q *Queue[T]) resetIfEmpty() {
	if len(q.turns) == 0 {
		q.share = 0
		if cap(q.turns) > maxIdleTurns {
			q.turns = nil
		}
	}
}
