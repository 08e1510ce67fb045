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

	"golang.org/x/sys/unix"
)

// clockTick is the unit of CPU times in /proc/<pid>/stat. USER_HZ is 100 wherever Go runs on Linux.
const clockTick = 10 * time.Millisecond

// cpuTimes returns the CPU time of each process, and then of this one. A time of -1 is unknown.
func cpuTimes(processes []Process) ([]time.Duration, error) {
	times := make([]time.Duration, len(processes)+1)
	var problems []error
	for i, p := range processes {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
			err = fmt.Errorf("pid %d: there is no such process", p.PID)
		case err == nil:
			times[i], err = parseStat(stat)
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

// parseStat returns the CPU time in a file /proc/<pid>/stat: the sum of utime and stime, which are fields 14 and 15.
// Field 2 is the program's name in parentheses and may hold any text.
func parseStat(stat []byte) (time.Duration, error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const utime = 14 - 3 // The first element of fields is field 3 of the file.
	if len(fields) < utime+2 {
		return 0, fmt.Errorf("/proc: %q is not what proc_pid_stat(5) says", stat)
	}
	var ticks uint64
	for _, f := range fields[utime : utime+2] {
		n, err := strconv.ParseUint(string(f), 10, 62)
		if err != nil {
			return 0, fmt.Errorf("/proc: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// newSleep returns a sleep for one goroutine at a time, and a function that ends its use. In a process that has nothing
// else to do, time.Sleep is half a millisecond late on average, because epoll_wait counts milliseconds; all latencies
// of an open loop would include that. A timer that is a file wakes epoll_wait and is about 30 µs late.
func newSleep() (sleep func(time.Duration), done func()) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return time.Sleep, func() {}
	}
	file := os.NewFile(uintptr(fd), "timerfd")
	var expirations [8]byte
	sleep = func(d time.Duration) {
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))} // A value of 0 would stop the timer.
		if err := unix.TimerfdSettime(fd, 0, &spec, nil); err == nil {
			_, err = file.Read(expirations[:])
			if err == nil {
				return
			}
		}
		time.Sleep(d)
	}
	return sleep, func() { _ = file.Close() } // A timer has no data to lose.
}
