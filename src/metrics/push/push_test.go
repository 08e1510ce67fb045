package push

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/metrics"
)

// writer is a Config.Writer that calls itself.
type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// sinkOf returns a sink that writes statsd lines.
func sinkOf(t *testing.T, w io.Writer, stats func() []metrics.Stat) *Sink {
	t.Helper()
	s, err := New(Config{Writer: w, ReadStats: stats})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRunFlushesEachIntervalAndAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var got []string
		n := int64(0)
		s := sinkOf(t, writer(func(p []byte) { got = append(got, fmt.Sprintf("%v %q", time.Since(start), p)) }),
			func() []metrics.Stat {
				n++
				return []metrics.Stat{c("a", n*n), g("b", n)}
			})
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		if err := s.Run(ctx); err != nil {
			t.Fatal(err)
		}
		want := []string{`10s "a:1|c\nb:1|g\n"`, `20s "a:3|c\nb:2|g\n"`, `25s "a:5|c\nb:3|g\n"`}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// However much there is, the last flush sends it, if the receiver takes it.
func TestLastFlushIsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var stats []metrics.Stat
		for i := range 1000 {
			stats = append(stats, c(fmt.Sprintf("n%04d", i), 1))
		}
		var out bytes.Buffer
		s := sinkOf(t, &out, func() []metrics.Stat { return stats })
		s.cfg.limits.bufferBytes, s.cfg.limits.batchBytes = 100, 50
		err := s.Run(ctx)
		if lines := strings.Count(out.String(), "\n"); err != nil || lines != 1000 || s.Dropped() != 0 {
			t.Errorf("%d lines of 1000, %d dropped, %v", lines, s.Dropped(), err)
		}
	})
}

// Run ends although the receiver takes nothing: after limits.lastFlushTimeout, and a moment later if a
// write does not return even then.
func TestRunEndsWithoutAReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tests := []struct {
			name string
			send func(ctx context.Context)
			want time.Duration
		}{
			{"polite", func(ctx context.Context) { <-ctx.Done() }, time.Second},
			{"deaf", func(context.Context) { time.Sleep(time.Hour) }, time.Second + maxWaitForHangingWrite},
		}
		for _, tt := range tests {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			start := time.Now()
			s := sinkOf(t, io.Discard, func() []metrics.Stat {
				return []metrics.Stat{c("a", 1), c("bbbbbbbbbbb", 1), g("cccccccccccccc", 1)}
			})
			s.cfg.limits.bufferBytes = 10
			s.writeBatch = func(ctx context.Context, _ []byte) (int, error) { tt.send(ctx); return 0, context.Canceled }
			err := s.Run(ctx)
			if took := time.Since(start); err != nil || took != tt.want {
				t.Errorf("%s: %v after %v, want %v", tt.name, err, took, tt.want)
			}
			time.Sleep(2 * time.Hour) // until the deaf one is done
			if s.Dropped() != 1 {     // the gauge; the counter is not lost but late
				t.Errorf("%s: %d dropped, want 1", tt.name, s.Dropped())
			}
		}
	})
}

func TestBuffer(t *testing.T) {
	s := sinkOf(t, io.Discard, func() []metrics.Stat { return nil })
	s.cfg.limits.bufferBytes, s.cfg.limits.batchBytes = 20, 10
	add := func(line string, want bool) {
		t.Helper()
		if (s.addLines([]byte(line), 1) == 1) != want {
			t.Errorf("add(%q) is not %v", line, want)
		}
	}
	removeFirst := func(want string) {
		t.Helper()
		b := s.appendBatch(nil)
		if string(b) != want {
			t.Errorf("took %q, want %q", b, want)
		}
		s.discardBytes(len(b))
	}
	add("one\n", true)
	add("two\n", true)
	add("three\n", true)
	add("far too long\n", true) // gone, and no reason to try again
	if s.Dropped() != 1 {
		t.Errorf("%d dropped, want 1", s.Dropped())
	}
	add("seven.\n", false)
	if s.WaitingBytes() != 14 {
		t.Errorf("%d bytes wait, want 14", s.WaitingBytes())
	}
	removeFirst("one\ntwo\n")
	add("seven.\n", true)
	removeFirst("three\n")
	removeFirst("seven.\n")
	removeFirst("")
}

func TestTags(t *testing.T) {
	tags := map[string]string{"zone": "a.b:c|d,e\nf", "env": "eu west", "": "x", "empty": "", "k=,:1": "v"}
	tests := []struct{ name, want string }{
		{"a.b", "a.b.__env=eu west.__k___1=v.__zone=a_b_c_d_e_f"},
		{"", ".__env=eu west.__k___1=v.__zone=a_b_c_d_e_f"},
		{"m.__code=ok", "m.__code=ok.__env=eu west.__k___1=v.__zone=a_b_c_d_e_f"},
		{"m.__env=mine", "m.__env=mine.__k___1=v.__zone=a_b_c_d_e_f"},
		{"m.__code", "m.__code.__env=eu west.__k___1=v.__zone=a_b_c_d_e_f"},
		{"ip_.__x=y.hits", "ip_.__x=y.hits.__env=eu west.__k___1=v.__zone=a_b_c_d_e_f"},
	}
	for _, tt := range tests {
		if got := withTags(tt.name, sortedTags(tags)); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.name, got, tt.want)
		}
		if got := withTags(tt.name, nil); got != tt.name {
			t.Errorf("%q without tags: %q", tt.name, got)
		}
	}
	dotted := sortedTags(map[string]string{"team.name": "a.b", "env": "x"})
	if got, want := withTags("m.__code=ok", dotted), "m.__code=ok.__env=x.__team.name=a_b"; got != want {
		t.Errorf("a key with a dot: got %q, want %q", got, want)
	}
	if name, tags := splitTags("m.__code=ok.__team.name=a_b"); name != "m" || len(tags) != 2 ||
		tags[1] != (Tag{"team.name", "a_b"}) {
		t.Errorf("a key with a dot is read as %q, %q", name, tags)
	}
}
