package logging

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/sirupsen/logrus"
)

// The last lines are written on every way out. A reader that is stuck delays the end by
// flushTimeout at most.
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
			"an error", false, func(*Output) error { return errTest },
			"ratelimit: " + errTest.Error() + "\n", 0,
		},
		{"a panic", false, func(o *Output) error { fmt.Fprintln(o.errQueue, "before it"); panic("lost") }, "before it\n", 0},
		{
			"a stuck reader", true, func(o *Output) error { fmt.Fprintln(o.errQueue, "one"); return errTest }, "",
			flushTimeout,
		},
		{"a stuck reader, and time is up sooner", true, func(o *Output) error {
			o.flushDeadline = time.Now().Add(time.Second)
			return errTest
		}, "", time.Second},
	}
	for _, test := range tests {
		t.Run(test.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
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
				if failed := strings.Contains(test.what, "error") || test.stuck; failed != errors.Is(err, errTest) {
					t.Errorf("the error is %#v", err)
				}
				close(wait) // ends the blocked write
			})
		})
	}
}

var errTest = errors.New("the rules are refused")

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
				var log strings.Builder
				o := &Output{errQueue: newQueue(&log), Stderr: &log}
				l, err := NewLoggers("info", format, o)
				if err != nil {
					t.Fatal(err)
				}
				go o.errQueue.run()
				l.WithFields(logrus.Fields{"a": text, "b": errors.New(text), "n": 7}).Info(text)
				o.errQueue.close(time.Now().Add(20 * time.Second))
				line := log.String()
				if len(line) > maxLineBytes || strings.Count(line, "\n") != 1 || !utf8.ValidString(line) {
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
