//go:build !linux

package main

import "syscall"

// attributes are none: the generator knows CPU times on Linux only, and says so.
func attributes() *syscall.SysProcAttr { return nil }
