//go:build linux

package siege

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"ratelimit/testbed/harness"
)

// Attacks by the reader of the log.
var logAttacks = []attack{
	{
		letter: "C", name: "the log's reader stalls",
		does:  "nothing reads the full pipe on stderr while Redis stands still; then a reload and SIGTERM",
		store: redis, tolerant: true, quiet: true, ends: true, prepare: logToPipe,
		strike: func(x *trial) { badReader(x, false) },
	},
	{
		letter: "C", name: "the log's reader is gone", does: "the same with a pipe whose reader has closed it",
		store: redis, tolerant: true, quiet: true, ends: true, prepare: logToPipe,
		strike: func(x *trial) { badReader(x, true) },
	},
	{
		letter: "C", name: "the log's reader comes back",
		does:  "a reader stalls, and then reads on; it is told how many lines are missing",
		store: redis, tolerant: true, quiet: true, prepare: logToPipe, strike: readerReturns,
	},
}

// logToPipe makes stderr a pipe of one page, which the test reads or not.
func logToPipe(x *trial, o *options) {
	path := filepath.Join(x.TempDir(), "stderr")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		x.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		x.Fatal(err)
	}
	x.fifo, o.log = file, path
	x.Cleanup(func() { _ = file.Close() })
	const setPipeSize = 1031 // F_SETPIPE_SZ
	raw, err := file.SyscallConn()
	if err != nil {
		x.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		_, _,
			_ = syscall.Syscall(syscall.SYS_FCNTL, fd, setPipeSize, 4096)
	}); err != nil {
		x.Fatal(err)
	}
}

// fill writes to the pipe until it is full.
func (x *trial) fill() {
	out, err := os.OpenFile(x.fifo.Name(), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		x.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	raw, err := out.SyscallConn()
	if err != nil {
		x.Fatal(err)
	}
	if err := raw.Write(func(fd uintptr) bool {
		for {
			if _, err := syscall.Write(int(fd), []byte("x")); err != nil {
				return true // it is full
			}
		}
	}); err != nil {
		x.Fatal(err)
	}
}

const lateRule = "- {key: late, rate_limit: {unit: hour, requests_per_unit: 5, on_store_failure: deny}}\n"

// awaitLateRule waits until a call shows that lateRule is in force, which denies
// without a store.
func (x *trial) awaitLateRule(within time.Duration) error {
	return x.awaitCode(within, "siege", "late", pb.RateLimitResponse_OVER_LIMIT)
}

// badReader is a reader that does not read, or that has closed the pipe.
func badReader(x *trial, closed bool) {
	if closed {
		if err := x.fifo.Close(); err != nil {
			x.complain("%v", err)
		}
	} else {
		x.fill()
	}
	x.server.Pause()
	defer x.server.Resume()
	begun := time.Now()
	// Rules with mistakes make lines, too.
	for n := range pick(x, 5, 30) {
		x.service.writeRules(x.T, "bad.yaml", fmt.Sprintf("domain: bad%d\ndescriptors: nonsense\n", n))
		time.Sleep(pick(x, 500*time.Millisecond, 2*time.Second))
	}
	time.Sleep(time.Until(begun.Add(pick(x, 4*time.Second, time.Minute))))
	if err := x.service.proc.Exited(); err != nil {
		x.complain("the process ended: %s", lastLine(err.Error()))
		return
	}
	x.logQuality(begun)
	if err := os.Remove(filepath.Join(x.service.config, "bad.yaml")); err != nil {
		x.complain("%v", err)
	}
	x.service.writeRules(x.T, "siege.yaml", baseRules+lateRule)
	if err := x.awaitLateRule(pick(x, 5*time.Second, 2*time.Second)); err != nil {
		x.complain("a reload takes no effect: %v", err)
	}
	asked := time.Now()
	if err := x.service.proc.Signal(syscall.SIGTERM); err != nil {
		x.complain("%v", err)
	}
	// SHUTDOWN_TIMEOUT is 1 s, and two more are allowed; in short, for a busy machine.
	within := pick(x, 8*time.Second, 3*time.Second)
	_ = harness.Retry(within, func() error {
		if x.service.proc.Alive() {
			return fmt.Errorf("it runs")
		}
		return nil
	})
	if x.service.proc.Alive() {
		x.complain("SIGTERM has not ended the process %v later", within)
		return
	}
	x.note("ended %.1f s after SIGTERM", time.Since(asked).Seconds())
}

// logQuality holds calls to the store's timeout and 50 ms; in short, to half a
// second.
func (x *trial) logQuality(begun time.Time) {
	q := x.neighbour.between(begun, time.Now().Add(-x.deadline))
	most := pick(x, 500*time.Millisecond, x.storeTimeout+50*time.Millisecond) + forgivenNaps*x.machine.late()
	if q.p99 > most {
		x.suspect("calls take up to %v, want at most %v", q.p99, most)
	}
	x.note("%d calls were answered within %v", q.calls, q.longest.Round(time.Millisecond))
}

// readerReturns stalls until lines have been dropped, and reads on.
func readerReturns(x *trial) {
	x.fill()
	x.server.Pause()
	begun := time.Now()
	mistakes := strings.Repeat("- {key: nonsense, rate_limit: {unit: fortnight}}\n", 1000)
	dropped := 0.0
	for n := 0; time.Since(begun) < pick(x, 15*time.Second, time.Minute) && (x.full || dropped == 0); n++ {
		x.service.writeRules(x.T, "bad.yaml", fmt.Sprintf("domain: bad%d\ndescriptors:\n%s", n, mistakes))
		time.Sleep(50 * time.Millisecond)
		dropped, _ = x.service.metric("ratelimit_log_dropped_total") // 0 while it cannot be read
	}
	x.server.Resume()
	if err := os.Remove(filepath.Join(x.service.config, "bad.yaml")); err != nil {
		x.complain("%v", err)
	}
	var text strings.Builder
	buffer := make([]byte, 64<<10)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && !strings.Contains(text.String(), "dropped"); {
		if err := x.fifo.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			x.Fatal(err)
		}
		n, _ := x.fifo.Read(buffer) // nothing to read is no error here
		text.Write(buffer[:n])
	}
	if _, err := x.service.metric("ratelimit_log_dropped_total"); err != nil {
		x.complain("%v", err)
	}
	switch {
	case !x.full && dropped == 0 && text.Len() > 0 && text.Len() < 1<<20:
		// The machine is so busy that the queue of 1 MiB was not filled.
	case dropped == 0:
		x.complain("%d KiB of lines waited, and ratelimit_log_dropped_total counts none", text.Len()>>10)
	case !strings.Contains(text.String(), "fortnight") || !strings.Contains(text.String(), "dropped"):
		x.complain("the log has %d bytes when its reader is back, and does not say that lines were dropped", text.Len())
	}
	x.note("%.0f lines were dropped; %d KiB of log came when the reader was back", dropped, text.Len()>>10)
}
