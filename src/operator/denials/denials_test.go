package denials

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

const text = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1, name: per-user}
  - key: banned
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: quota
    quota_mode: true
    rate_limit: {unit: day, requests_per_unit: 0}
`

// start returns a limiter on the rules above that tells r of its decisions.
func start(t *testing.T, cfg limiter.Config, r limiter.Recorder) *limiter.Limiter {
	t.Helper()
	if r != nil {
		cfg.Recorders = []limiter.Recorder{r}
	}
	return limitertest.New(t, cfg, text)
}

// parse reads "key=value,key=value key=value".
func parse(line string) *limiter.Request {
	req := &limiter.Request{Domain: []byte("d"), Now: time.Unix(1_000_000_000, 0)} // 40 s into a minute
	for word := range strings.FieldsSeq(line) {
		var d limiter.Descriptor
		for pair := range strings.SplitSeq(word, ",") {
			key, value, _ := strings.Cut(pair, "=")
			d.Entries = append(d.Entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// Which decisions are denials, and what is said of them.
func TestDenials(t *testing.T) {
	t.Parallel()
	var got []Denial
	sampler := New(Config{MaxSamples: 1000, Interval: time.Second, OnSample: func(d Denial) { got = append(got, d) }})
	for _, tt := range []struct {
		asked string
		cfg   limiter.Config
		want  []Denial
	}{
		{"ip=1 user=x nothing=1", limiter.Config{}, nil},
		{"banned=1", limiter.Config{}, []Denial{{
			Domain: "d", Rule: "d.banned", Descriptor: "banned=1",
			RetryAfter: algorithm.Never,
		}}},
		{
			"ip=1 ip=1",
			limiter.Config{},
			[]Denial{{Domain: "d", Rule: "d.ip", Descriptor: "ip=1", RetryAfter: 20 * time.Second}},
		},
		// the longest wait
		{
			"ip=1 ip=1 user=x user=x",
			limiter.Config{},
			[]Denial{{Domain: "d", Rule: "d.user", Descriptor: "user=x", RetryAfter: 800 * time.Second}},
		},
		{
			"ip=1 ip=1 banned=a,b=c",
			limiter.Config{},
			[]Denial{{Domain: "d", Rule: "d.ip", Descriptor: "ip=1", RetryAfter: 20 * time.Second}},
		},
		{"shadow=1", limiter.Config{}, nil},
		{"banned=1", limiter.Config{ShadowMode: true}, nil},
		{
			"quota=1 ip=1",
			limiter.Config{},
			[]Denial{{Domain: "d", Rule: "d.quota", Descriptor: "quota=1", RetryAfter: algorithm.Never}},
		},
	} {
		got = nil
		req := parse(tt.asked)
		if err := start(t, tt.cfg, sampler).Check(t.Context(), req, new(limiter.Answer)); err != nil {
			t.Fatal(err)
		}
		if len(got) != len(tt.want) {
			t.Errorf("%s: got %+v, want %+v", tt.asked, got, tt.want)
			continue
		}
		for i := range got {
			counter := "d_" + strings.ReplaceAll(got[i].Descriptor, "=", "_") + "_"
			if time.Since(got[i].At).Abs() > time.Hour || !strings.HasPrefix(got[i].Counter, counter) {
				t.Errorf("%s: got the counter %q at %v", tt.asked, got[i].Counter, got[i].At)
			}
			got[i].At, got[i].Counter = time.Time{}, ""
			if got[i] != tt.want[i] {
				t.Errorf("%s:\n got %+v\nwant %+v", tt.asked, got[i], tt.want[i])
			}
		}
	}
}

// A denial has the time and the protocol of its request.
func TestTimeAndProtocol(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_000_000_000, 7)
	for _, protocol := range []string{"", "grpc"} {
		var got Denial
		req := parse("banned=1")
		req.Protocol = protocol
		New(Config{MaxSamples: 1, Interval: time.Second, OnSample: func(d Denial) { got = d }}).recordDenied(at, req,
			denied(t))
		if got.Protocol != protocol || !got.At.Equal(at) {
			t.Errorf("%v: got %+v", protocol, got)
		}
	}
}

// At most so many of a second are sampled, and the next one says how many were not.
func TestRate(t *testing.T) {
	t.Parallel()
	var got []Denial
	s := New(Config{MaxSamples: 2, Interval: time.Second, OnSample: func(d Denial) { got = append(got, d) }})
	a := denied(t)
	at := time.Unix(100, 0)
	for _, step := range []struct {
		after   time.Duration
		sampled int
		skipped uint64 // as the last one says
	}{
		{0, 1, 0},
		{999 * time.Millisecond, 2, 0},
		{999 * time.Millisecond, 2, 0},
		{999 * time.Millisecond, 2, 0},
		{time.Second, 3, 2},
		{time.Second, 4, 0},
		{time.Second, 4, 0},
		{time.Hour, 5, 1},
	} {
		s.recordDenied(at.Add(step.after), parse("banned=1"), a)
		if len(got) != step.sampled || got[len(got)-1].SkippedDenials != step.skipped {
			t.Errorf("after %v: %d sampled, the last %+v, want %+v", step.after, len(got), got[len(got)-1], step)
		}
	}
}

// denied is the answer to banned=1.
func denied(t *testing.T) *limiter.Answer {
	t.Helper()
	a := new(limiter.Answer)
	if err := start(t, limiter.Config{}, nil).Check(t.Context(), parse("banned=1"), a); err != nil {
		t.Fatal(err)
	}
	return a
}

// Many denials at once are one sample. The others are skipped, also if the interval has enough samples.
func TestAddMany(t *testing.T) {
	t.Parallel()
	var got []Denial
	s := New(Config{MaxSamples: 1, Interval: time.Second, OnSample: func(d Denial) { got = append(got, d) }})
	for _, step := range []struct{ at, n int64 }{{0, 5}, {0, 7}, {1, 1}} {
		s.AddMany(time.Unix(step.at, 0), uint64(step.n), func() Denial { return Denial{Domain: "d"} })
	}
	want := []Denial{
		{At: time.Unix(0, 0), Domain: "d", SkippedDenials: 4},
		{At: time.Unix(1, 0), Domain: "d", SkippedDenials: 7},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Several goroutines together take no more than the rate, and lose none.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	var sampled, skipped atomic.Uint64
	s := New(Config{MaxSamples: 50, Interval: time.Second, OnSample: func(d Denial) {
		sampled.Add(1)
		skipped.Add(d.SkippedDenials)
	}})
	a := denied(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 1000 {
				s.recordDenied(time.Unix(int64(1+i/1000), 0), parse("banned=1"), a)
			}
		})
	}
	wg.Wait()
	if n := sampled.Load(); n != 50 {
		t.Errorf("%d sampled", n)
	}
	rest, _ := s.throttle.Pass(time.Unix(2, 0))
	if n := skipped.Load() + rest; n != 8000-50 {
		t.Errorf("%d skipped", n)
	}
}
