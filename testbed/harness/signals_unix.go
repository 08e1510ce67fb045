//go:build unix

package harness

import "syscall"

// A program that gets pauseSignal stops where it is, until it gets resumeSignal.
const (
	pauseSignal  = syscall.SIGSTOP
	resumeSignal = syscall.SIGCONT
)
