package bench

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// newSleep returns a sleep for one goroutine at a time, and what ends its use.
// Go's own wakes up to a millisecond late in a process with nothing else to do,
// since it waits in epoll_wait, which counts milliseconds: half a millisecond on
// average, which every latency of an open loop would hold. A timer that is a file
// wakes epoll_wait itself and is some 30 µs late.
func newSleep() (sleep func(time.Duration), done func()) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return time.Sleep, func() {}
	}
	file := os.NewFile(uintptr(fd), "timerfd")
	var expirations [8]byte
	sleep = func(d time.Duration) {
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))} // 0 would never ring
		if err := unix.TimerfdSettime(fd, 0, &spec, nil); err == nil {
			_, err = file.Read(expirations[:])
			if err == nil {
				return
			}
		}
		time.Sleep(d)
	}
	return sleep, func() { _ = file.Close() } // nothing is kept in it
}
