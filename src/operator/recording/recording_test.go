package recording

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// newRecorder returns a Recorder that writes a request as its domain and descriptors, in quotes.
func newRecorder() *Recorder {
	return New(func(dst []byte, req *limiter.Request) []byte {
		dst = fmt.Appendf(dst, `"%s`, req.Domain)
		for _, d := range req.Descriptors {
			dst = append(dst, ' ')
			for i, e := range d.Entries {
				dst = fmt.Appendf(dst, "%s%s=%s", []string{"", ","}[min(i, 1)], e.Key, e.Value)
			}
		}
		return append(dst, '"')
	})
}

// parse reads "domain a=1,b=2 c=3".
func parse(text string) *limiter.Request {
	words := strings.Fields(text)
	req := &limiter.Request{Domain: []byte(words[0])}
	for _, word := range words[1:] {
		var d limiter.Descriptor
		for pair := range strings.SplitSeq(word, ",") {
			key, value, _ := strings.Cut(pair, "=")
			d.Entries = append(d.Entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// answer returns an answer that was decided some milliseconds after the start.
func answer(start time.Time, milliseconds int, over bool) *limiter.Answer {
	return &limiter.Answer{
		DecidedAt: start.Add(time.Duration(milliseconds) * time.Millisecond).UnixNano(), Over: over,
		Statuses: []limiter.Status{{Over: over}},
	}
}

// record runs act while r records, and returns the recording.
func record(t *testing.T, r *Recorder, cfg Config, act func(start time.Time)) string {
	t.Helper()
	var text strings.Builder
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- r.Stream(ctx, cfg, func(lines []byte) error {
			text.Write(lines)
			return nil
		})
	}()
	synctest.Wait()
	act(time.Now())
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return text.String()
}

// Lines are in the order of their times, although requests on several goroutines are recorded in another one.
func TestOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		got := record(t, r, Config{Percent: 100}, func(start time.Time) { // synctest starts at 2000-01-01T00:00:00Z.
			r.Record(parse("d u=1"), answer(start, 0, false))
			r.Record(parse("d u=3"), answer(start, 20, true))
			r.Record(parse("d u=2"), answer(start, 10, false))
			r.Record(&limiter.Request{CallerLimit: new(algorithm.Limit)}, answer(start, 15, false)) // Not recorded.
			time.Sleep(110 * time.Millisecond)
			r.Record(parse("d u=5"), answer(start, 109, false))
			r.Record(parse("d u=4"), answer(start, 95, false))
			time.Sleep(300 * time.Millisecond)
			r.Record(parse("d u=6"), answer(start, 1, false)) // So late that u=5 has been written.
			failed := answer(start, 410, false)
			failed.Statuses[0].StoreFailed = true
			r.Record(parse("d u=7"), failed)
			r.Record(parse("d u=8"), &limiter.Answer{})
		})
		want := `{"at":"2000-01-01T00:00:00.000000000Z","request":"d u=1","answer":"OK"}
{"at":"2000-01-01T00:00:00.010000000Z","request":"d u=2","answer":"OK"}
{"at":"2000-01-01T00:00:00.020000000Z","request":"d u=3","answer":"OVER_LIMIT"}
{"at":"2000-01-01T00:00:00.095000000Z","request":"d u=4","answer":"OK"}
{"at":"2000-01-01T00:00:00.109000000Z","request":"d u=5","answer":"OK"}
{"at":"2000-01-01T00:00:00.109000000Z","request":"d u=6","answer":"OK"}
{"at":"2000-01-01T00:00:00.410000000Z","request":"d u=7","answer":"ERROR"}
{"at":"2000-01-01T00:00:00.410000000Z","request":"d u=8","answer":"OK"}
`
		if got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
		if len(*r.active.Load()) > 0 {
			t.Error("the recording goes on")
		}
	})
}

// What is chosen: requests at random, or all requests that have a chosen value, the same ones each time.
func TestSample(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		all := func(start time.Time) {
			for i := range 2000 {
				r.Record(parse(fmt.Sprintf("d user=%d,path=x", i)), answer(start, 0, false))
				r.Record(parse(fmt.Sprintf("e ip=1 path=y,user=%d", i)), answer(start, 0, false))
			}
			r.Record(parse("d ip=1"), answer(start, 0, false))
		}
		if n := strings.Count(record(t, r, Config{Percent: 10}, all), "\n"); n < 300 || n > 500 {
			t.Errorf("10 %% of 4001 are %d", n)
		}
		if n := strings.Count(record(t, r, Config{Percent: 100, Domain: "d"}, all), "\n"); n != 2001 {
			t.Errorf("%d of one domain", n)
		}
		first := record(t, r, Config{Percent: 10, ByKey: "user"}, all)
		users := make(map[string]int)
		for line := range strings.Lines(first) {
			_, rest, _ := strings.Cut(line, "user=")
			users[rest[:strings.IndexAny(rest, `,"`)]]++
		}
		for user, n := range users {
			if n != 2 {
				t.Errorf("%d of 2 requests of user %s", n, user)
			}
		}
		if len(users) < 150 || len(users) > 250 {
			t.Errorf("10 %% of 2000 users are %d", len(users))
		}
		if second := record(t, r, Config{Percent: 10, ByKey: "user"}, all); len(second) != len(first) {
			t.Error("another recording has other users")
		}
	})
}

// A reader that does not keep up loses lines. They are counted, and memory is bounded.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		release := make(chan struct{})
		var text strings.Builder
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- r.Stream(ctx, Config{Percent: 100}, func(lines []byte) error {
				if len(lines) > 0 {
					<-release
				}
				text.Write(lines)
				return nil
			})
		}()
		synctest.Wait()
		start := time.Now()
		r.Record(parse("d u="+strings.Repeat("x", maxRequestBytes)), answer(start, 0, false))
		r.Record(parse("d u=1"), answer(start, 0, false))
		time.Sleep(time.Second)
		long := parse("d u=" + strings.Repeat("x", 10_000))
		for i := range 1000 {
			r.Record(long, answer(start, 1000+i, false))
		}
		rec := (*r.active.Load())[0]
		if n := len(rec.text); n > maxWaitingBytes+20_000 || n < maxWaitingBytes {
			t.Errorf("%d bytes wait", n)
		}
		close(release)
		time.Sleep(2 * time.Second)
		for range MaxLinesPerSecond + 5 {
			r.Record(parse("d u=2"), answer(start, 5000, false))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		lost := 1000 - strings.Count(text.String(), "xxx\"")
		for _, want := range []string{`"lost":1}`, fmt.Sprintf(`"lost":%d}`, lost), `"lost":5}`} {
			if strings.Count(text.String(), want) != 1 {
				t.Errorf("no %s", want)
			}
		}
		if n := strings.Count(text.String(), `"d u=2"`); n != MaxLinesPerSecond {
			t.Errorf("%d lines of a second", n)
		}
	})
}

// There are at most MaxRecordings, and a write that fails ends one.
func TestMaxRecordings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, MaxRecordings)
		for range MaxRecordings {
			go func() { done <- r.Stream(ctx, Config{Percent: 1}, func([]byte) error { return nil }) }()
		}
		synctest.Wait()
		if err := r.Stream(ctx, Config{Percent: 1}, func([]byte) error { return nil }); !errors.Is(err, ErrTooMany) {
			t.Errorf("one more: %v", err)
		}
		cancel()
		for range MaxRecordings {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		gone, calls := errors.New("gone"), 0
		err := r.Stream(t.Context(), Config{Percent: 100}, func([]byte) error {
			if calls++; calls == 3 {
				return gone
			}
			return nil
		})
		if err != gone || len(*r.active.Load()) > 0 {
			t.Errorf("%v, and active is %v", err, r.active.Load())
		}
	})
}

// BenchmarkRecord is what each request costs: without a recording, in one that does not choose it, and in one that has
// it.
func BenchmarkRecord(b *testing.B) {
	req, a := parse("d user=alex,path=/pay"), answer(time.Now(), 0, false)
	for _, tt := range []struct {
		name string
		cfg  *Config
	}{
		{"none", nil},
		{"not chosen", &Config{Percent: 1e-9}},
		{"not chosen by key", &Config{Percent: 1e-9, ByKey: "user"}},
		{"chosen", &Config{Percent: 100}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			r := New(rls.AppendJSONRequest)
			if tt.cfg != nil {
				rec := &recording{cfg: *tt.cfg, threshold: 1}
				if tt.cfg.Percent == 100 {
					rec.threshold = 1<<64 - 1
				}
				r.start(rec)
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				r.Record(req, a)
				if n++; tt.cfg != nil && n%1000 == 0 {
					rec := (*r.active.Load())[0]
					rec.take()
					rec.second = 0
				}
			}
		})
	}
}
