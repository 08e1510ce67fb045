package h2

import "syscall"

// yieldProcessor lets another thread that waits for this processor run, be it of this process or of the client's. It
// does not tell the Go scheduler, for the reason of package sockets.
func yieldProcessor() { _, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }
