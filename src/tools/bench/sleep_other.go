//go:build !linux

package bench

import "time"

// newSleep returns a sleep, and what ends its use.
func newSleep() (sleep func(time.Duration), done func()) { return time.Sleep, func() {} }
