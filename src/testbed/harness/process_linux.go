package harness

import "syscall"

// endWithUs lets the kernel kill the program when the test process dies without its cleanups, as it does when go test runs out of
// time.
func endWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
