package integration

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

// The reader of stderr stops reading, or goes away, while Redis is paused: the log is
// full of failures that are not read. Calls are still answered, goroutines are bounded,
// rules are reloaded and the process stops.
func TestLogWithoutReader(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		closed bool // the reader has gone, else it is stuck
		reads  bool // it reads again before the end
	}{
		{name: "stuck"},
		{name: "stuck and reads again", reads: true},
		{name: "gone", closed: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, redistest.Options{})
			rules := newRuleDir(t)
			rules.put(t, "d.yaml", manyRules(10))
			s, stderr := startPiped(t, append(rules.env(), "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=500ms", "LOG_LEVEL=debug",
				"RUNTIME_DEBOUNCE=10ms", "SHUTDOWN_TIMEOUT=1s")...)
			if test.closed {
				_ = stderr.Close()
			}
			tr := load(t, 1000, s.grpc)
			server.Pause()
			t.Cleanup(server.Resume)
			time.Sleep(2 * time.Second) // of calls without an answer of Redis
			if n := s.stat(t, "ratelimit.go.numGoroutine"); n > 1000 {
				t.Errorf("%d goroutines", n)
			}
			rules.put(t, "d.yaml", manyRules(11))
			changed := time.Now()
			s.until(t, "the new rules are in force", func() error {
				page, err := get("http://" + s.debug + "/rlconfig")
				if err == nil && !bytes.Contains(page, []byte("requests_per_unit=11")) {
					err = errors.New("the old ones are")
				}
				return err
			})
			if took := time.Since(changed); took > 8*time.Second {
				t.Errorf("a reload took %v, want 2s", took)
			}
			callsEnd(t, tr)
			s.until(t, "lines are lost and counted", func() error {
				name := "ratelimit.log.dropped"
				if test.closed {
					name = "ratelimit.log.write_errors"
				}
				if s.stat(t, name) == 0 {
					return fmt.Errorf("%s is 0", name)
				}
				return nil
			})
			rest := make(chan string, 1)
			if test.reads {
				readAgain(t, s, stderr, rest)
			}
			asked := time.Now()
			s.stop(t)
			if took := time.Since(asked); took > 8*time.Second {
				t.Errorf("it took %v to stop, want SHUTDOWN_TIMEOUT + 2s", took)
			}
			if !test.reads {
				return
			}
			text := <-rest
			for _, want := range []string{
				"rules reloaded",
				"log lines were dropped because the reader of stderr did not keep up", "msg=stopping signal=terminated",
			} {
				if !strings.Contains(text, want) {
					t.Errorf("the log lacks %q; it ends in\n%s", want, tail(text))
				}
			}
		})
	}
}

// readAgain reads the log until its end, which it sends to rest. It returns when the
// service has written all lines that waited.
func readAgain(t *testing.T, s *service, stderr io.Reader, rest chan<- string) {
	t.Helper()
	go func() {
		text, _ := io.ReadAll(stderr) // an error shows in text
		rest <- string(text)
	}()
	s.until(t, "the log is written", func() error {
		if n := s.stat(t, "ratelimit.log.waiting"); n > 0 {
			return fmt.Errorf("%d bytes are not", n)
		}
		return nil
	})
}

// callsEnd ends the load and checks that no call hung.
func callsEnd(t *testing.T, tr *steadyLoad) {
	t.Helper()
	tr.end()
	longest := slices.Max(tr.took)
	t.Logf("%d calls, the longest %v", len(tr.took), longest)
	if longest > 5*time.Second || len(tr.took) < 100 {
		t.Error("calls hang, where REDIS_TIMEOUT is 500ms")
	}
}

// manyRules are rules whose load is more lines of the log, at debug level, than a
// pipe and the queue hold.
func manyRules(limit int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: d\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: %d}}\n", limit)
	for i := range 12_000 {
		fmt.Fprintf(&b, "- {key: path, value: \"%d\", rate_limit: {unit: hour, requests_per_unit: 1}}\n", i)
	}
	return b.String()
}

// startPiped starts the service with a pipe as its stderr, and reads from the pipe
// until the service is ready.
func startPiped(t *testing.T, env ...string) (*service, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() }) // closed already, in one case
	cmd := serviceCommand(t, env...)
	s := &service{process: &process{name: "ratelimit", Process: harness.Process{
		Path: cmd.Path, Args: cmd.Args[1:], Env: cmd.Env, Log: filepath.Join(t.TempDir(), "log"), Stderr: w,
	}}}
	s.launch(t)
	_ = w.Close() // the service has its own
	var log bytes.Buffer
	for lines := bufio.NewScanner(r); !strings.Contains(log.String(), "msg=ready"); {
		if !lines.Scan() {
			t.Fatalf("it ended before it was ready:\n%s", &log)
		}
		if !strings.Contains(lines.Text(), "loading descriptor") {
			fmt.Fprintln(&log, lines.Text())
		}
	}
	testfiles.Write(t, s.Log, log.Bytes())
	s.readLog(t)
	return s, r
}

// A service whose stderr has no reader ends with its own status. A command that prints
// ends by SIGPIPE without a word, as programs in a pipe do.
func TestClosedPipes(t *testing.T) {
	t.Parallel()
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	run := func(stdout bool, args ...string) (syscall.WaitStatus, string) {
		t.Helper()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		defer func() { _ = w.Close() }()
		var other bytes.Buffer
		cmd := exec.Command(path, args...)
		cmd.Env = []string{"REDIS_TIMEOUT=soon"}
		if cmd.Stdout, cmd.Stderr = &other, w; stdout {
			cmd.Stdout, cmd.Stderr = w, &other
		}
		_ = cmd.Run() // how it ended is looked at
		return cmd.ProcessState.Sys().(syscall.WaitStatus), other.String()
	}
	for _, args := range [][]string{{}, {"serve"}, {"divvy", "testdata/none.ini"}} {
		if status, _ := run(false, args...); !status.Exited() || status.ExitStatus() != 1 {
			t.Errorf("ratelimit %v: %v, want exit status 1", args, status)
		}
	}
	if status, text := run(true, "schema"); !status.Signaled() || status.Signal() != syscall.SIGPIPE || text != "" {
		t.Errorf("ratelimit schema: %v, and %q on stderr; want SIGPIPE", status, text)
	}
}
