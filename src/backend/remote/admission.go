package remote

import "sync/atomic"

// Admission bounds the calls whose callers wait, and the bytes of all keys, including those of
// abandoned calls in a queue. A key can have a megabyte, so a bound for calls is not enough.
type Admission struct {
	waitingCalls, heldBytes atomic.Int64
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
	if r.waitingCalls.Add(1) > r.MaxCalls {
		r.waitingCalls.Add(-1)
		return false
	}
	n, others := r.heldBytes.Add(int64(bytes)), int64(keyBytesHeadroom-1)*int64(bytes)
	if n+others > r.MaxKeyBytes && n > int64(bytes) {
		r.heldBytes.Add(-int64(bytes))
		r.waitingCalls.Add(-1)
		return false
	}
	return true
}

// Leave ends the wait of a caller. The bytes of its call stay until FreeBytes.
func (r *Admission) Leave() { r.waitingCalls.Add(-1) }

// HoldBytes counts bytes that are copied from a call that has entered. It never fails.
func (r *Admission) HoldBytes(bytes int) { r.heldBytes.Add(int64(bytes)) }

// FreeBytes makes room for other bytes.
func (r *Admission) FreeBytes(bytes int) { r.heldBytes.Add(-int64(bytes)) }

// WaitingCalls returns how many calls wait.
func (r *Admission) WaitingCalls() int64 { return r.waitingCalls.Load() }

// HeldBytes returns how many bytes of keys are held.
func (r *Admission) HeldBytes() int64 { return r.heldBytes.Load() }
