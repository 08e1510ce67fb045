//go:build !linux

package bench

import "time"

// newSleep returns a sleep, and a function that ends its use.
func newSleep() (sleep func(time.Duration), done func()) { return time.Sleep, func() {} }
