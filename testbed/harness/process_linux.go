package harness

import "syscall"

// KilledWithParent makes the kernel kill a program when the test process dies without its cleanups, as it does when go
// test runs out of time.
func KilledWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
