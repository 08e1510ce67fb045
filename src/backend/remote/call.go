package remote

import (
	"sync/atomic"
	"time"
)

// Call is what a caller and the goroutines that serve it share of one Take.
type Call struct {
	Done  chan struct{} // one send, when there is an answer
	Timer *time.Timer   // the time the caller has
	Gone  atomic.Bool   // the caller left: what has not been sent need not be
	Bytes int           // in the store's Room

	// holders is how many may look at the call; the last one to leave puts it away.
	holders atomic.Int32
}

// Init makes a new call of c, without holders.
func (c *Call) Init() {
	c.Done, c.Timer = make(chan struct{}, 1), time.NewTimer(time.Hour)
	c.Timer.Stop()
}

// Reset makes a call that was put away one with a single holder.
func (c *Call) Reset() {
	c.holders.Store(1)
	c.Gone.Store(false)
	c.Bytes = 0
}

// Hold adds a holder.
func (c *Call) Hold() { c.holders.Add(1) }

// Release takes a holder away and reports whether it was the last, which then puts
// the call away.
func (c *Call) Release() bool {
	if c.holders.Add(-1) > 0 {
		return false
	}
	select {
	case <-c.Done: // of a caller that did not wait for it
	default:
	}
	return true
}

// Spare is b without its content, to be filled again; nothing if b is so large
// that it is better given back.
func Spare(b []byte) []byte {
	if cap(b) > maxSpare {
		return nil
	}
	return b[:0]
}

const maxSpare = 64 << 10 // of thousands of calls
