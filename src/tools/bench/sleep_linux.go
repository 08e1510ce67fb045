package bench

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// newSleep returns a sleep for one goroutine at a time, and a function that ends its use. time.Sleep in a process that has
// nothing else to do is half a millisecond late on average, because epoll_wait counts milliseconds. All latencies of an open loop
// would include that. A timer that is a file wakes epoll_wait and is some 30 µs late.
func newSleep() (sleep func(time.Duration), done func()) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return time.Sleep, func() {}
	}
	file := os.NewFile(uintptr(fd), "timerfd")
	var expirations [8]byte
	sleep = func(d time.Duration) {
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))} // 0 would disarm it
		if err := unix.TimerfdSettime(fd, 0, &spec, nil); err == nil {
			_, err = file.Read(expirations[:])
			if err == nil {
				return
			}
		}
		time.Sleep(d)
	}
	return sleep, func() { _ = file.Close() } // it holds no data
}
