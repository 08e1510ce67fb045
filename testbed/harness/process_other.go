//go:build !linux

package harness

import "syscall"

// killedWithParent has no effect on this system: programs outlive a test process that dies without its cleanups.
func killedWithParent() *syscall.SysProcAttr { return nil }
