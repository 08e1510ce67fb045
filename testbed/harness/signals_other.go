//go:build !unix

package harness

import "syscall"

// Programs cannot be paused on this system: Pause and Resume return the error that an unknown signal causes.
const (
	pauseSignal  = syscall.Signal(0x13)
	resumeSignal = syscall.Signal(0x12)
)
