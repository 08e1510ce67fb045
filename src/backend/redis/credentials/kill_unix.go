//go:build unix

package credentials

import (
	"os/exec"
	"syscall"
)

// killWithChildren makes the end of the context of cmd kill the programs that it started, too.
func killWithChildren(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
