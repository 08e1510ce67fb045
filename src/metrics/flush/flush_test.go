package flush

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func c(name string, value int64) metrics.Stat {
	return metrics.Stat{Name: name, Kind: metrics.KindCounter, Value: value}
}

func g(name string, value int64) metrics.Stat {
	return metrics.Stat{Name: name, Kind: metrics.KindGauge, Value: value}
}

func line(b []byte, s metrics.Stat) []byte { return fmt.Appendf(b, "%s=%d\n", s.Name, s.Value) }

func TestDeltas(t *testing.T) {
	var d Deltas
	steps := []struct {
		what    string
		stats   []metrics.Stat
		refuse  string
		want    []metrics.Stat
		refused int
	}{
		{what: "all is new", stats: []metrics.Stat{c("a", 2), c("b", 0), g("g", 5)}, want: []metrics.Stat{c("a", 2), g("g", 5)}},
		{what: "nothing moved; gauges always", stats: []metrics.Stat{c("a", 2), c("b", 0), g("g", 5)}, want: []metrics.Stat{g("g", 5)}},
		{what: "what moved", stats: []metrics.Stat{c("a", 5), c("b", 1), g("g", 0)}, want: []metrics.Stat{c("a", 3), c("b", 1), g("g", 0)}},
		{what: "no room for a", stats: []metrics.Stat{c("a", 7), c("b", 2)}, refuse: "a", want: []metrics.Stat{c("b", 1)}, refused: 1},
		{what: "a catches up", stats: []metrics.Stat{c("a", 8), c("b", 2)}, want: []metrics.Stat{c("a", 3)}},
		{what: "lower: began anew", stats: []metrics.Stat{c("a", 1), c("b", 2)}, want: []metrics.Stat{c("a", 1)}},
		{what: "b is gone, aa is new", stats: []metrics.Stat{c("a", 1), c("aa", 4)}, want: []metrics.Stat{c("aa", 4)}},
		{what: "b is back, from 0", stats: []metrics.Stat{c("a", 1), c("aa", 4), c("b", 2)}, want: []metrics.Stat{c("b", 2)}},
		{what: "a name changes its kind", stats: []metrics.Stat{g("a", 1), c("aa", 4), c("b", 2)}, want: []metrics.Stat{g("a", 1)}},
		{what: "and back", stats: []metrics.Stat{c("a", 1)}, want: []metrics.Stat{c("a", 1)}},
		{what: "empty", stats: nil, want: nil},
	}
	for _, step := range steps {
		var got []metrics.Stat
		refused := d.Next(step.stats, func(s metrics.Stat) bool {
			if s.Name == step.refuse {
				return false
			}
			got = append(got, s)
			return true
		})
		if !slices.Equal(got, step.want) || refused != step.refused {
			t.Errorf("%s: got %v and %d refused, want %v and %d", step.what, got, refused, step.want, step.refused)
		}
		if len(d.last) != len(step.stats) {
			t.Errorf("%s: %d figures kept, of %d", step.what, len(d.last), len(step.stats))
		}
	}
}

func TestRunFlushesEachIntervalAndAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		q := NewQueue(QueueConfig{})
		var got []string
		n := int64(0)
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		err := Run(ctx, Config{
			Stats: func() []metrics.Stat { n++; return []metrics.Stat{c("a", n*n), g("b", n)} },
			Line:  line,
			Queue: q,
			Send: func(ctx context.Context) {
				for q.Wait(ctx) {
					b := q.Peek(nil)
					q.Discard(len(b))
					got = append(got, fmt.Sprintf("%v %q", time.Since(start), b))
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{`10.1s "a=1\nb=1\n"`, `20.1s "a=3\nb=2\n"`, `25s "a=5\nb=3\n"`}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// However much there is, the last flush sends it, if the receiver takes it.
func TestLastFlushIsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(QueueConfig{Max: 100, Batch: 50})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var stats []metrics.Stat
		for i := range 1000 {
			stats = append(stats, c(fmt.Sprintf("n%04d", i), 1))
		}
		lines := 0
		err := Run(ctx, Config{
			Stats: func() []metrics.Stat { return slices.Clone(stats) },
			Line:  line,
			Queue: q,
			Send: func(ctx context.Context) {
				for q.Wait(ctx) {
					b := q.Peek(nil)
					q.Discard(len(b))
					lines += strings.Count(string(b), "\n")
				}
			},
		})
		if err != nil || lines != 1000 || q.Dropped() != 0 {
			t.Errorf("%d lines of 1000, %d dropped, %v", lines, q.Dropped(), err)
		}
	})
}

func TestRunEndsThoughNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tests := []struct {
			name string
			send func(ctx context.Context)
			want time.Duration
		}{
			{"polite", func(ctx context.Context) { <-ctx.Done() }, time.Second},
			{"deaf", func(context.Context) { time.Sleep(time.Hour) }, time.Second + leaveBehind},
		}
		for _, tt := range tests {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			start := time.Now()
			q := NewQueue(QueueConfig{Max: 10})
			err := Run(ctx, Config{
				Stats: func() []metrics.Stat { return []metrics.Stat{c("a", 1), c("bbbbbbbbbbb", 1), g("cccccccccccccc", 1)} },
				Line:  line, Queue: q, Send: tt.send,
			})
			if took := time.Since(start); err != nil || took != tt.want {
				t.Errorf("%s: %v after %v, want %v", tt.name, err, took, tt.want)
			}
			time.Sleep(2 * time.Hour) // until the deaf one is done
			if q.Dropped() != 1 {     // the gauge; the counter is not lost but late
				t.Errorf("%s: %d dropped, want 1", tt.name, q.Dropped())
			}
		}
	})
}

func TestQueue(t *testing.T) {
	q := NewQueue(QueueConfig{Max: 20, Batch: 8, MaxLine: 10})
	add := func(line string, want bool) {
		t.Helper()
		if q.Add([]byte(line)) != want {
			t.Errorf("Add(%q) is not %v", line, want)
		}
	}
	take := func(want string) {
		t.Helper()
		b := q.Peek(nil)
		if string(b) != want {
			t.Errorf("took %q, want %q", b, want)
		}
		q.Discard(len(b))
	}
	add("one\n", true)
	add("two\n", true)
	add("three\n", true)
	add("far too long\n", true) // gone, and no reason to try again
	if q.Dropped() != 1 {
		t.Errorf("%d dropped, want 1", q.Dropped())
	}
	add("seven.\n", false)
	if q.Len() != 14 {
		t.Errorf("%d bytes wait, want 14", q.Len())
	}
	take("one\ntwo\n")
	add("seven.\n", true)
	take("three\n")
	take("seven.\n")
	take("")
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
		if got := string(AppendName(nil, tt.name, Tags(tags))); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.name, got, tt.want)
		}
		if got := string(AppendName(nil, tt.name, nil)); got != tt.name {
			t.Errorf("%q without tags: %q", tt.name, got)
		}
	}
	dotted := Tags(map[string]string{"team.name": "a.b", "env": "x"})
	if got, want := string(AppendName(nil, "m.__code=ok", dotted)), "m.__code=ok.__env=x.__team.name=a_b"; got != want {
		t.Errorf("a key with a dot: got %q, want %q", got, want)
	}
	if name, tags := Split("m.__code=ok.__team.name=a_b"); name != "m" || len(tags) != 2 || tags[1] != (Tag{"team.name", "a_b"}) {
		t.Errorf("a key with a dot is read as %q, %q", name, tags)
	}
}
