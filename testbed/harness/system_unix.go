//go:build unix

package harness

import (
	"fmt"
	"syscall"
	"time"
)

// CPUTime returns the CPU time of this process so far, which other processes do not lengthen as they do the time on the
// wall.
func CPUTime() (time.Duration, error) {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0, err
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}

// MakePipe makes a named pipe.
func MakePipe(path string) error { return syscall.Mkfifo(path, 0o600) }

// RaiseFileLimit lets this process, and those it starts, open n files. It returns an error if the system does not allow
// that.
func RaiseFileLimit(n uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Max < n {
		return fmt.Errorf("a process may open %d files here, and %d are needed", limit.Max, n)
	}
	limit.Cur = max(limit.Cur, n)
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}
