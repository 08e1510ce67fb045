package reload

// Signal remembers one message until it is received; further ones count as the same.
type Signal chan struct{}

// NewSignal returns a Signal without a message.
func NewSignal() Signal { return make(Signal, 1) }

// Send never blocks.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Clear receives the message, if there is one, and returns whether there was.
func (s Signal) Clear() bool {
	select {
	case <-s:
		return true
	default:
		return false
	}
}
