package remote

import "sync/atomic"

// Admission bounds the calls whose callers wait, and the bytes of all keys, including those of
// abandoned calls in a queue. A key can have a megabyte, so a bound for calls is not enough.
type Admission struct {
	// WaitingCalls counts the calls that have entered and not ended. HeldBytes counts the bytes of their keys, and of all others
	// that are not freed yet. Copies of keys count too, without a bound.
	WaitingCalls, HeldBytes atomic.Int64
	// MaxCalls and MaxKeyBytes are the bounds. A single call may have more than MaxKeyBytes.
	MaxCalls, MaxKeyBytes int64
}

// keyBytesHeadroom is how many times the bytes of a call must be free before it enters, so that a
// few callers with long keys leave room for callers with short keys.
const keyBytesHeadroom = 4

// maxHeldKeyBytes bounds the bytes of the keys of all calls of one store.
const maxHeldKeyBytes = 64 << 20

// TryEnter counts a call and its bytes. It reports whether there was room for them.
func (r *Admission) TryEnter(bytes int) bool {
	if r.WaitingCalls.Add(1) > r.MaxCalls {
		r.WaitingCalls.Add(-1)
		return false
	}
	n, others := r.HeldBytes.Add(int64(bytes)), int64(keyBytesHeadroom-1)*int64(bytes)
	if n+others > r.MaxKeyBytes && n > int64(bytes) {
		r.HeldBytes.Add(-int64(bytes))
		r.WaitingCalls.Add(-1)
		return false
	}
	return true
}
