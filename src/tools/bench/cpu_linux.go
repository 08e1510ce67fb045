package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"
)

// tick is the unit of /proc/<pid>/stat: USER_HZ is 100 wherever Go runs on Linux.
const tick = 10 * time.Millisecond

// cpuTimes returns the CPU time of each process, and then of this one. -1 is unknown.
func cpuTimes(processes []Process) ([]time.Duration, error) {
	times := make([]time.Duration, len(processes)+1)
	var problems []error
	for i, p := range processes {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
			err = fmt.Errorf("pid %d: there is no such process", p.PID)
		case err == nil:
			times[i], err = statTime(stat)
		}
		if err != nil {
			times[i] = -1
			problems = append(problems, err)
		}
	}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		problems = append(problems, fmt.Errorf("getrusage: %w", err))
	}
	times[len(processes)] = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return times, errors.Join(problems...)
}

// statTime returns the sum of utime and stime, fields 14 and 15 of proc_pid_stat(5). Field 2 is the program's name in parentheses
// and may hold any text.
func statTime(stat []byte) (time.Duration, error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // from field 3
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc: %q is not what proc_pid_stat(5) says", stat)
	}
	var ticks uint64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseUint(string(f), 10, 62)
		if err != nil {
			return 0, fmt.Errorf("/proc: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}
