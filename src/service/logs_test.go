package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/sirupsen/logrus"

	"ratelimit/src/service/logging"
	"ratelimit/src/settings"
)

// The last lines are written on every way out. A reader that is stuck delays the end by
// logFlushTimeout at most.
func TestLastWords(t *testing.T) {
	tests := []struct {
		what  string
		stuck bool
		run   func(*Output) error
		want  string
		took  time.Duration
	}{
		{"the end", false, func(o *Output) error { fmt.Fprintln(o.errQueue, "stopping"); return nil }, "stopping\n", 0},
		{
			"an error", false, func(*Output) error { return errNoRulesInTime },
			"ratelimit: " + errNoRulesInTime.Error() + "\n", 0,
		},
		{"a panic", false, func(o *Output) error { fmt.Fprintln(o.errQueue, "before it"); panic("lost") }, "before it\n", 0},
		{
			"a stuck reader", true, func(o *Output) error { fmt.Fprintln(o.errQueue, "one"); return errNoRulesInTime }, "",
			logFlushTimeout,
		},
		{"a stuck reader, and time is up sooner", true, func(o *Output) error {
			o.flushDeadline = time.Now().Add(time.Second)
			return errNoRulesInTime
		}, "", time.Second},
	}
	for _, test := range tests {
		t.Run(test.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log output
				to := io.Writer(&log)
				wait := make(chan struct{})
				if test.stuck {
					to = writerFunc(func(p []byte) (int, error) { <-wait; return len(p), nil })
				}
				start := time.Now()
				var err error
				func() {
					defer func() { _ = recover() }() // the test panics on purpose
					err = WithOutput(io.Discard, to, test.run)
				}()
				if took := time.Since(start); took != test.took {
					t.Errorf("it took %v to end, want %v", took, test.took)
				}
				if log.String() != test.want {
					t.Errorf("printed %q, want %q", log.String(), test.want)
				}
				if failed := strings.Contains(test.what, "error") || test.stuck; failed != errors.Is(err, errNoRulesInTime) {
					t.Errorf("the error is %#v", err)
				}
				close(wait) // ends the blocked write
			})
		})
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Long texts of callers are cut, and the line keeps its LOG_FORMAT.
func TestLongLines(t *testing.T) {
	t.Parallel()
	texts := map[string]string{
		"plain": strings.Repeat("a", 1<<20), "characters": strings.Repeat("€", 1<<18), "quotes": strings.Repeat(`"`, 1<<18),
		"control": strings.Repeat("\x01", 1<<18), "not UTF-8": strings.Repeat("\xff", 1<<18), "short": "short",
	}
	for _, format := range []string{"text", "json"} {
		for name, text := range texts {
			t.Run(format+" "+name, func(t *testing.T) {
				t.Parallel()
				var log output
				o := &Output{errQueue: logging.New(&log), stdout: io.Discard, stderr: &log}
				l, err := newLogs(&settings.Settings{LogLevel: "info", LogFormat: format}, o)
				if err != nil {
					t.Fatal(err)
				}
				go o.errQueue.Run()
				l.WithFields(logrus.Fields{"a": text, "b": errors.New(text), "n": 7}).Info(text)
				o.errQueue.Close(time.Now().Add(20 * time.Second))
				line := log.String()
				if len(line) > logging.MaxLineBytes || strings.Count(line, "\n") != 1 || !utf8.ValidString(line) {
					t.Errorf("a line of %d bytes that begins %.60q", len(line), line)
				}
				if cut := strings.Contains(line, " bytes cut)"); cut == (name == "short") {
					t.Errorf("cut: %t", cut)
				}
				if format == "json" {
					var fields struct {
						N int `json:"n"`
					}
					if err := json.Unmarshal([]byte(line), &fields); err != nil || fields.N != 7 {
						t.Errorf("%v, n is %d", err, fields.N)
					}
				} else if !strings.Contains(line, "level=info") || !strings.Contains(line, " n=7") {
					t.Errorf("fields are missing in a line that ends %q", line[max(0, len(line)-60):])
				}
			})
		}
	}
}

// onChange and onReady are called without the lock, so they may read the state. The last
// call of onChange has the newest state.
func TestHealthTellsWithoutLock(t *testing.T) {
	t.Parallel()
	var h health
	divvyAddr := net.TCPAddr{Port: 7}
	last := true // needs no lock: one call at a time
	h.degradedNote = func(time.Time) string { return h.unhealthyReason(operators) }
	h.rules.sources = []*sourceHealth{new(sourceHealth)}
	h.stores = []storeHealth{{
		name: "memory", hasAnswered: true,
		note: func() string { return h.unhealthyReason(operators) },
	}}
	h.onChange = func(ok bool) { _ = h.components(operators); last = ok }
	said := 0
	h.onReady = func(_ logrus.Fields, late net.Addr) {
		if said++; late != net.Addr(&divvyAddr) {
			t.Errorf("the late address is %v", late)
		}
		h.update(func(*health) {})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				for n := range 500 {
					h.update(func(h *health) {
						if h.rules.sources[0].inForce = nil; (i+n)%2 == 0 {
							h.rules.sources[0].inForce = new(rulesInForce)
						}
					})
				}
			})
		}
		all.Wait()
		h.update(func(h *health) {
			h.rules.sources[0].inForce, h.rules.firstLoadFields, h.divvy.lateAddr = nil, logrus.Fields{}, &divvyAddr
		})
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("a listener waits for the lock under which it is called")
	}
	if last || said != 1 {
		t.Errorf("told last that healthy is %t; ready was said %d times", last, said)
	}
}
