//go:build unix

package ports

import (
	"math"
	"syscall"
)

// OpenFiles returns how many files the process may have open; 0: not known. Go raises the soft limit to the hard one
// before main.
func OpenFiles() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(uint64(limit.Cur), math.MaxInt32))
}
