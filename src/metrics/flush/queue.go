package flush

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// QueueConfig says how much a Queue holds.
type QueueConfig struct {
	// Max is the most bytes that wait. Defaults to 4 MiB.
	Max int
	// Batch is the most bytes that are taken out at once. Defaults to 64 KiB.
	Batch int
	// MaxLine is the longest line that is taken at all. Defaults to Batch.
	MaxLine int
	// Linger is how long lines wait for others, so that few timings do not cost
	// a packet each. Defaults to 100 ms.
	Linger time.Duration
}

// Queue holds lines that wait to be sent. Many may add; one takes out.
type Queue struct {
	cfg     QueueConfig
	dropped atomic.Uint64
	wake    chan struct{} // there is something, or a whole batch
	empty   chan struct{} // there is nothing left
	hurried atomic.Bool   // nothing lingers
	closed  chan struct{}

	mu   sync.Mutex
	buf  []byte // lines from head on wait
	head int
}

// NewQueue returns an empty queue.
func NewQueue(cfg QueueConfig) *Queue {
	if cfg.Max == 0 {
		cfg.Max = 4 << 20
	}
	if cfg.Batch == 0 {
		cfg.Batch = 64 << 10
	}
	if cfg.MaxLine == 0 {
		cfg.MaxLine = cfg.Batch
	}
	if cfg.Linger == 0 {
		cfg.Linger = 100 * time.Millisecond
	}
	return &Queue{
		cfg:    cfg,
		wake:   make(chan struct{}, 1),
		empty:  make(chan struct{}, 1),
		closed: make(chan struct{}),
	}
}

// Add adds a line, its line feed included, and reports false if there is no
// room. A line that could never be sent is dropped and counted. It never waits.
func (q *Queue) Add(line []byte) bool {
	if len(line) > q.cfg.MaxLine {
		q.Drop()
		return true
	}
	q.mu.Lock()
	before := len(q.buf) - q.head
	after := before + len(line)
	if after > q.cfg.Max {
		q.mu.Unlock()
		return false
	}
	if q.head > 0 && len(q.buf)+len(line) > cap(q.buf) { // make room in front before growing
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = append(q.buf, line...)
	q.mu.Unlock()
	if before == 0 || before < q.cfg.Batch && after >= q.cfg.Batch {
		signal(q.wake)
	}
	return true
}

// AddOrDrop adds a line, or drops and counts it if there is no room.
func (q *Queue) AddOrDrop(line []byte) {
	if !q.Add(line) {
		q.Drop()
	}
}

// Drop counts a line that will never be sent.
func (q *Queue) Drop() { q.dropped.Add(1) }

// Dropped is how many lines were dropped.
func (q *Queue) Dropped() uint64 { return q.dropped.Load() }

// Len is how many bytes wait.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.buf) - q.head
}

// Wait returns true when there are lines to take: a batch, or some that have
// lingered. It returns false when ctx ends, or when the queue is closed and
// empty.
func (q *Queue) Wait(ctx context.Context) bool {
	var lingered <-chan time.Time
	for {
		size := q.Len()
		if size >= q.cfg.Batch || size > 0 && q.hurried.Load() || q.IsClosed() {
			return size > 0 && ctx.Err() == nil
		}
		if size > 0 && lingered == nil {
			t := time.NewTimer(q.cfg.Linger)
			defer t.Stop()
			lingered = t.C
		}
		select {
		case <-q.wake:
		case <-q.closed:
		case <-lingered:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// Peek appends the next lines to b, a batch at most, and leaves them there.
func (q *Queue) Peek(b []byte) []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	next := q.buf[q.head:]
	if len(next) > q.cfg.Batch {
		next = next[:q.cfg.Batch]
		next = next[:bytes.LastIndexByte(next, '\n')+1]
	}
	return append(b, next...)
}

// Discard takes out the first n bytes.
func (q *Queue) Discard(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.head += n
	if q.head < len(q.buf) {
		return
	}
	q.buf, q.head = q.buf[:0], 0
	if cap(q.buf) > keep {
		q.buf = nil
	}
	signal(q.empty)
}

// keep is how many bytes an empty queue holds on to.
const keep = 1 << 20

// Close says that no more lines come.
func (q *Queue) Close() { close(q.closed) }

// Closed is closed by Close.
func (q *Queue) Closed() <-chan struct{} { return q.closed }

// IsClosed tells whether Close was called.
func (q *Queue) IsClosed() bool {
	select {
	case <-q.closed:
		return true
	default:
		return false
	}
}

// waitEmpty returns false if ctx ends before the queue is empty. Nothing lingers
// meanwhile.
func (q *Queue) waitEmpty(ctx context.Context) bool {
	q.hurried.Store(true)
	defer q.hurried.Store(false)
	signal(q.wake)
	for q.Len() > 0 {
		select {
		case <-q.empty:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
