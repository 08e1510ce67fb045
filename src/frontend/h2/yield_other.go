//go:build !linux

package h2

import "runtime"

// yieldProcessor lets another goroutine run.
func yieldProcessor() { runtime.Gosched() }
