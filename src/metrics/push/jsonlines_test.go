package push

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/metrics"
)

func runJSON(t *testing.T, w io.Writer, tags map[string]string, during func(*Sink), stats ...metrics.Stat) *Sink {
	t.Helper()
	s, err := New(Config{
		Format:    JSONLines,
		ReadStats: func() []metrics.Stat { return append([]metrics.Stat(nil), stats...) }, Writer: w, Tags: tags,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+500*time.Millisecond)
	defer cancel()
	if during != nil {
		go during(s)
	}
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
	return s
}

func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which begins with the year 2000
		var out bytes.Buffer
		runJSON(t, &out, map[string]string{"env": "a.b"}, func(s *Sink) {
			time.Sleep(1234567 * time.Microsecond)
			s.AddTimings("time", 1, 2500*time.Microsecond)
		},
			metrics.Stat{Name: "a.hits", Value: 3},
			metrics.Stat{Name: "a.zero", Value: 0},
			metrics.Stat{Name: "b", Kind: metrics.KindGauge, Value: 7},
		)
		want := `{"level":"debug","ts":946684801.234567,"logger":"gostats.loggingsink","msg":"flushing timer","json":{"name":"time.__env=a_b","type":"timer","value":"2.000000"}}
{"level":"debug","ts":946684810.000000,"logger":"gostats.loggingsink","msg":"flushing counter","json":{"name":"a.hits.__env=a_b","type":"counter","value":"3.000000"}}
{"level":"debug","ts":946684810.000000,"logger":"gostats.loggingsink","msg":"flushing gauge","json":{"name":"b.__env=a_b","type":"gauge","value":"7.000000"}}
{"level":"debug","ts":946684810.000000,"logger":"gostats.loggingsink","msg":"flushing all stats","json":{"type":"all stats","value":"0.000000"}}
{"level":"debug","ts":946684810.500000,"logger":"gostats.loggingsink","msg":"flushing gauge","json":{"name":"b.__env=a_b","type":"gauge","value":"7.000000"}}
{"level":"debug","ts":946684810.500000,"logger":"gostats.loggingsink","msg":"flushing all stats","json":{"type":"all stats","value":"0.000000"}}
`
		if out.String() != want {
			t.Errorf("\n got %s\nwant %s", out.String(), want)
		}
	})
}

func TestOddNamesAreJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, want := range map[string]string{
			`say "hi"\`:    `say "hi"\`,
			"a\x00b\nc\td": "a\x00b\nc\td",
			"grüße <&>":    "grüße <&>",
			"a\xffb":       "a\uFFFDb",
		} {
			var out bytes.Buffer
			runJSON(t, &out, nil, nil, metrics.Stat{Name: name, Value: 1})
			line, _, _ := strings.Cut(out.String(), "\n")
			var got struct {
				JSON struct{ Name string }
			}
			if err := json.Unmarshal([]byte(line), &got); err != nil || got.JSON.Name != want {
				t.Errorf("%q: got %q, %v", name, got.JSON.Name, err)
			}
		}
	})
}

// slow never returns before its time.
type slow time.Duration

func (s slow) Write(p []byte) (int, error) {
	time.Sleep(time.Duration(s))
	return len(p), nil
}

func TestWriterBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := runJSON(t, slow(time.Hour), nil, func(s *Sink) {
			for range 100_000 {
				s.AddTimings("time", 1, time.Millisecond)
			}
		})
		if took := time.Since(start); took > 12*time.Second {
			t.Errorf("Run ended after %v", took)
		}
		if s.Dropped() == 0 || s.WaitingBytes() > 4<<20 {
			t.Errorf("%d dropped, %d bytes wait", s.Dropped(), s.WaitingBytes())
		}
		time.Sleep(2 * time.Hour)
	})
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestWriterFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if s := runJSON(t, broken{}, nil, nil, metrics.Stat{Name: "a", Value: 1}); s.Dropped() != 3 {
			t.Errorf("%d dropped, want 3: the counter and the ends of two flushes", s.Dropped())
		}
	})
}

func BenchmarkJSONTiming(b *testing.B) {
	s, err := New(Config{Format: JSONLines, ReadStats: func() []metrics.Stat { return nil }, Writer: io.Discard})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		s.AddTimings("ratelimit_server.ShouldRateLimit.response_time", 1, time.Millisecond)
		if n := s.WaitingBytes(); n > 1<<20 {
			s.discardBytes(n)
		}
	}
}
