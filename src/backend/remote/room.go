package remote

import (
	"sync/atomic"

	"ratelimit/src/backend"
)

// Room bounds the calls whose callers wait, and the bytes of all keys, also of calls
// whose callers have left and that still stand in a queue. Keys can be a megabyte long,
// so counting calls is not enough.
type Room struct {
	calls, bytes atomic.Int64
	// MaxCalls and MaxBytes are the bounds; a call alone may be larger.
	MaxCalls, MaxBytes int64
}

// headroom times the bytes of a call have to be free for it to enter, so that a few
// callers with huge keys leave room for those with small ones.
const headroom = 4

// MaxBytes is how many bytes of keys may be on their way to one store.
const MaxBytes = 64 << 20

// Enter counts a call and its bytes, and reports whether there was room for it.
func (r *Room) Enter(bytes int) bool {
	if r.calls.Add(1) > r.MaxCalls {
		r.calls.Add(-1)
		return false
	}
	n, others := r.bytes.Add(int64(bytes)), int64(headroom-1)*int64(bytes)
	if n+others > r.MaxBytes && n > int64(bytes) {
		r.bytes.Add(-int64(bytes))
		r.calls.Add(-1)
		return false
	}
	return true
}

// Leave ends the wait of a caller. The bytes of its call stay until Free.
func (r *Room) Leave() { r.calls.Add(-1) }

// Hold counts bytes without asking for room: they are copies of bytes that have entered.
func (r *Room) Hold(bytes int) { r.bytes.Add(int64(bytes)) }

// Free gives bytes back.
func (r *Room) Free(bytes int) { r.bytes.Add(-int64(bytes)) }

// Calls returns how many calls wait.
func (r *Room) Calls() int64 { return r.calls.Load() }

// Bytes returns how many bytes of keys are held.
func (r *Room) Bytes() int64 { return r.bytes.Load() }

// KeyBytes returns how many bytes the keys of b have.
func KeyBytes(b *backend.Batch) (n int) {
	for i := range b.Hits {
		n += len(b.Hits[i].Key)
	}
	return n
}
