package main

import "syscall"

// attributes keep a terminal's Ctrl-C from our programs, which we end ourselves
// and in order, and end them should we be killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
