//go:build !linux

package bench

import (
	"errors"
	"time"
)

// cpuTimes returns -1 for this process. It fails if there are others: their CPU time can be read on Linux only.
func cpuTimes(processes []Process) ([]time.Duration, error) {
	if len(processes) > 0 {
		return nil, errors.New("the CPU time of processes can be read on Linux only; leave out their pids")
	}
	return []time.Duration{-1}, nil
}

// newSleep returns a sleep, and a function that ends its use.
func newSleep() (sleep func(time.Duration), done func()) { return time.Sleep, func() {} }
