package remote

import (
	"container/heap"
	"slices"
	"time"
)

// FairQueue orders the requests that wait for one server, so that small requests overtake large ones and no request
// starves. The cost of a request is the time that the server is expected to need. Requests are served in the order in
// which they would finish if the server shared its time equally among all that wait:
//
//	Add(a, 25ms), Add(b, 25ms)   the order is a, b
//	RecordWork(2ms)              a got 2 ms, which is 1 ms for each of the two
//	Add(c, 10µs)                 would finish soonest: c, a, b
//
// Equal shares would delay every large request to the end. This order finishes the first of them early, and the last no
// later.
//
// The user sends a piece of the Head to the server, calls RecordWork with the cost of the piece,
// and then Pop. If a rest of the request is left, it calls PutBack when the piece is done.
//
// The zero value is an empty queue. A FairQueue has neither lock nor clock.
type FairQueue[T any] struct {
	entries         entryHeap[T]
	equalShareNs    float64 // the time that each request would have got since the queue was empty
	addedRequests   uint64
	lastPoppedEntry queueEntry[T] // the entry of the last popped request, without the request
}

// queueEntry is a request with its place in a FairQueue.
type queueEntry[T any] struct {
	request       T
	virtualFinish float64 // the value of FairQueue.equalShareNs at which the request would be done
	arrivalNumber uint64  // the order of arrival, which decides between equal shares
}

// entryHeap is a heap. Only heap.Init and heap.Fix may be used, because they never call Push or Pop, which would
// allocate.
type entryHeap[T any] []queueEntry[T]

func (t entryHeap[T]) Len() int      { return len(t) }
func (t entryHeap[T]) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t entryHeap[T]) Less(i, j int) bool {
	return t[i].virtualFinish < t[j].virtualFinish ||
		t[i].virtualFinish == t[j].virtualFinish && t[i].arrivalNumber < t[j].arrivalNumber
}
func (*entryHeap[T]) Push(any) {}
func (*entryHeap[T]) Pop() any { return nil }

// Len returns how many requests wait.
func (q *FairQueue[T]) Len() int { return len(q.entries) }

// Add adds a request. A negative cost counts as 0.
func (q *FairQueue[T]) Add(request T, cost time.Duration) {
	q.addedRequests++
	q.insert(queueEntry[T]{request, q.equalShareNs + float64(max(cost, 0)), q.addedRequests})
}

// PutBack puts back the request that was popped last, with the cost of its rest. It keeps its
// place before the others, because large requests that took turns would all finish late.
func (q *FairQueue[T]) PutBack(request T, cost time.Duration) {
	finish := q.equalShareNs + float64(max(cost, 0))
	if q.lastPoppedEntry.arrivalNumber > 0 {
		finish = min(finish, q.lastPoppedEntry.virtualFinish)
	}
	q.insert(queueEntry[T]{request, finish, q.lastPoppedEntry.arrivalNumber})
}

func (q *FairQueue[T]) insert(t queueEntry[T]) {
	q.entries = append(q.entries, t)
	heap.Fix(&q.entries, len(q.entries)-1)
}

// Head returns the next request. It panics if the queue is empty.
func (q *FairQueue[T]) Head() T { return q.entries[0].request }

// RecordWork records that the server got work of this cost, which all waiting requests share.
func (q *FairQueue[T]) RecordWork(cost time.Duration) {
	if n := len(q.entries); n > 0 {
		q.equalShareNs += float64(max(cost, 0)) / float64(n)
	}
}

// Pop removes the Head and returns it. It panics if the queue is empty.
func (q *FairQueue[T]) Pop() T {
	head := q.entries[0]
	q.lastPoppedEntry = queueEntry[T]{virtualFinish: head.virtualFinish, arrivalNumber: head.arrivalNumber}
	last := len(q.entries) - 1
	q.entries.Swap(0, last)
	q.entries[last] = queueEntry[T]{}
	q.entries = q.entries[:last]
	if last > 1 {
		heap.Fix(&q.entries, 0)
	}
	q.resetIfEmpty()
	return head.request
}

// DropWhere removes the requests for which drop returns true. It calls drop once for each request.
func (q *FairQueue[T]) DropWhere(drop func(T) bool) {
	q.entries = slices.DeleteFunc(q.entries, func(t queueEntry[T]) bool { return drop(t.request) })
	heap.Init(&q.entries)
	q.resetIfEmpty()
}

// maxKeptQueueEntries is how many entries an empty queue keeps memory for.
const maxKeptQueueEntries = 4096

// resetIfEmpty sets equalShareNs to 0 when no request waits, so that sums stay small and exact.
func (q *FairQueue[T]) resetIfEmpty() {
	if len(q.entries) == 0 {
		q.equalShareNs = 0
		if cap(q.entries) > maxKeptQueueEntries {
			q.entries = nil
		}
	}
}
