//go:build !linux

package harness

import "syscall"

// KilledWithParent has no effect on this system: programs outlive a test process that dies without its cleanups.
func KilledWithParent() *syscall.SysProcAttr { return nil }
