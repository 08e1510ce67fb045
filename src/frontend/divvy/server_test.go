package divvy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/limitertest"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(benchServer); kind != "" {
		if err := serveBench(kind); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const kitchen = `
domain: kitchen
descriptors:
  - key: ip
    rate_limit: {algorithm: first_hit_window, period: 10s, requests_per_unit: 2}
  - key: ip
    value: 10.0.0.7
    rate_limit: {algorithm: first_hit_window, period: 10s, requests_per_unit: 0}
  - key: staff
    rate_limit: {unlimited: true}
  - key: cookie
    value: б 🍪
    rate_limit: {algorithm: first_hit_window, period: 60s, requests_per_unit: 9}
  - key: bucket
    rate_limit: {algorithm: gcra, unit: minute, requests_per_unit: 6, burst: 1}
  - key: window
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: log
    rate_limit: {algorithm: sliding_window, period: 90s, requests_per_unit: 1}
  - key: trial
    shadow_mode: true
    rate_limit: {algorithm: first_hit_window, period: 10s, requests_per_unit: 1}
  - key: user
    charge: path
    rate_limit: {algorithm: first_hit_window, period: 100s, requests_per_unit: 3}
    descriptors:
      - key: action
        rate_limit: {algorithm: first_hit_window, period: 10s, requests_per_unit: 1}
`

const pantry = `
domain: pantry
descriptors:
  - key: ip
    rate_limit: {algorithm: first_hit_window, period: 60s, requests_per_unit: 7}
`

func load(tb testing.TB, files ...string) *rules.Set {
	tb.Helper()
	var list []filerules.File
	for _, text := range files {
		list = append(list, filerules.File{Name: "test.yaml", Data: []byte(text)})
	}
	return limitertest.Load(tb, list)
}

func decide(tb testing.TB, cfg limiter.Config) *limiter.Limiter {
	tb.Helper()
	if cfg.Backend == nil {
		cfg.Backend = limitertest.Store(tb, memory.Config{})
	}
	l := limiter.New(cfg)
	l.UseRules(load(tb, kitchen, pantry))
	return l
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// build returns a server for the domain kitchen at the epoch.
func build(tb testing.TB, cfg Config) *Server {
	tb.Helper()
	if cfg.Limiter == nil {
		cfg.Limiter = decide(tb, limiter.Config{})
	}
	if cfg.Domain == "" && cfg.DomainKey == "" {
		cfg.Domain = "kitchen"
	}
	cfg.MaxPollers = 1
	s, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	s.now = epoch
	return s
}

// startConn serves on a free port until the test ends.
func start(tb testing.TB, s *Server) (addr string) {
	tb.Helper()
	l := harness.Listen(tb)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		s.Shutdown(ctx)
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	return l.Addr().String()
}

// dial opens a connection on which nothing takes longer than 20 s.
func dial(tb testing.TB, addr string) *net.TCPConn {
	tb.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		tb.Fatal(err)
	}
	return c.(*net.TCPConn)
}

func send(tb testing.TB, c net.Conn, text string) {
	tb.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		tb.Fatal(err)
	}
}

// rest is all that comes until the other side closes.
func rest(tb testing.TB, c net.Conn) string {
	tb.Helper()
	got, err := io.ReadAll(c)
	if err != nil {
		tb.Errorf("%v behind %q", err, got)
	}
	return string(got)
}

// line reads up to the end of a line.
func line(tb testing.TB, c net.Conn) string {
	tb.Helper()
	var text []byte
	for one := make([]byte, 1); ; {
		if _, err := c.Read(one); err != nil {
			tb.Fatalf("%v behind %q", err, text)
		}
		if text = append(text, one[0]); one[0] == '\n' {
			return string(text)
		}
	}
}

// say sends text, closes the sending side and returns the answers.
func say(tb testing.TB, addr, text string) string {
	tb.Helper()
	c := dial(tb, addr)
	send(tb, c, text)
	if err := c.CloseWrite(); err != nil {
		tb.Fatal(err)
	}
	return rest(tb, c)
}

func TestConversations(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
		said []string // and answered, connection after connection
	}{
		{"a window", Config{}, []string{
			"HIT ip=1\nHIT ip=1\nHIT ip=1\nHIT ip=2\n", "OK true 1 10\nOK true 0 10\nOK false 0 10\nOK true 1 10\n",
			"HIT ip=2\n", "OK true 0 10\n",
		}},
		{
			"batches of one",
			Config{Config: pipeline.Config{MaxPipelined: 1}},
			[]string{"HIT ip=1\nHIT ip=1\nHIT ip=1\n", "OK true 1 10\nOK true 0 10\nOK false 0 10\n"},
		},
		{"CRLF, and no end", Config{}, []string{"HIT ip=1\r\nhit \"ip\"=\"1\"", "OK true 1 10\nOK true 0 10\n"}},
		{"nothing", Config{}, []string{"", ""}},
		{"always denied", Config{}, []string{"HIT ip=10.0.0.7\nHIT ip=10.0.0.7\n", "OK false 0 -1\nOK false 0 -1\n"}},
		{"no limit", Config{}, []string{
			"HIT staff=x\nHIT\nHIT no=rule\n",
			"OK true 4294967295 0\nOK true 4294967295 0\nOK true 4294967295 0\n",
		}},
		{"a shadow", Config{}, []string{"HIT trial=x\nHIT trial=x\n", "OK true 0 10\nOK true 0 10\n"}},
		{"other algorithms", Config{}, []string{
			"HIT bucket=x\nHIT bucket=x\nHIT bucket=x\n", "OK true 1 10\nOK true 0 20\nOK false 0 10\n",
			"HIT window=x\nHIT window=x\n", "OK true 0 60\nOK false 0 60\n",
			"HIT log=x\nHIT log=x\n", "OK true 0 90\nOK false 0 90\n",
		}},
		{"two limits at once", Config{}, []string{
			"HIT user=x action=y\nHIT user=x action=y\nHIT user=x action=z\nHIT user=x\n",
			"OK true 0 100\nOK false 0 10\nOK true 0 100\nOK false 0 100\n",
		}},
		{"text that is no ASCII", Config{}, []string{
			"HIT cookie=\"б 🍪\"\n", "OK true 8 60\n",
			"HIT ip=\xff\nHIT ip=\xfe\nHIT ip=\ufffd\n", "OK true 1 10\nOK true 0 10\nOK false 0 10\n",
		}},
		{"an ERR ends it", Config{}, []string{
			"HIT ip=1\nEGGPLANT\nHIT ip=1\n", "OK true 1 10\nERR unknown-command \"Unrecognized command: EGGPLANT\"\n",
			"HIT ip=1\n", "OK true 0 10\n", // what stood behind was not charged
			"\n", "ERR unknown-command \"Unrecognized command: \"\n",
			"HIT ip\nHIT ip=2", "ERR unknown \"Unexpected end of input string.\"\n",
		}},
		{"long lines", Config{MaxLineBytes: 12}, []string{
			"HIT ip=12345\r\nHIT ip=12345\nHIT ip=12345", "OK true 1 10\nOK true 0 10\nOK false 0 10\n",
			"HIT ip=123456\nHIT ip=2\n", "ERR unknown \"Line is longer than 12 bytes.\"\n",
			"HIT ip=123456", "ERR unknown \"Line is longer than 12 bytes.\"\n",
			"HIT ip=2\nHIT ip=1234567890", "OK true 1 10\nERR unknown \"Line is longer than 12 bytes.\"\n",
		}},
		{"no end at all", Config{}, []string{
			strings.Repeat("x", 1<<20+2),
			"ERR unknown \"Line is longer than 1048576 bytes.\"\n",
		}},
		{"300 kB", Config{}, []string{
			"HIT ip=1 more=" + strings.Repeat("x", 300_000) + "\nHIT ip=1\n" + strings.Repeat("HIT ip=1\n", 2),
			"OK true 4294967295 0\nOK true 1 10\nOK true 0 10\nOK false 0 10\n",
		}},
		{"another domain", Config{Domain: "pantry"}, []string{"HIT ip=1\n", "OK true 6 60\n"}},
		{"a domain for each", Config{DomainKey: "domain"}, []string{
			"HIT ip=1 domain=kitchen\nHIT ip=1 domain=pantry\nHIT domain=pantry ip=1\nHIT ip=1 domain=kitchen\n",
			"OK true 1 10\nOK true 6 60\nOK true 5 60\nOK true 0 10\n",
			"HIT ip=1\n", "ERR unknown \"bad request: the domain is empty\"\n",
			"HIT ip=1 domain=kitchen\nHIT ip=1 domain=cellar\nHIT ip=1 domain=kitchen\n",
			"OK false 0 10\nERR unknown \"No rules are loaded for the domain cellar.\"\n",
		}},
		{
			"one unless named",
			Config{Domain: "pantry", DomainKey: "d"},
			[]string{"HIT ip=1\nHIT ip=1 d=kitchen\nHIT ip=1\n", "OK true 6 60\nOK true 1 10\nOK true 5 60\n"},
		},
		{"without DomainKey the pair is an entry", Config{}, []string{"HIT ip=1 domain=pantry\n", "OK true 4294967295 0\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr := start(t, build(t, tt.cfg))
			for i := 0; i < len(tt.said); i += 2 {
				if got := say(t, addr, tt.said[i]); got != tt.said[i+1] {
					t.Errorf("conversation %d: got %q, want %q", i/2+1, got, tt.said[i+1])
				}
			}
		})
	}
}

// The numbers are divvy's: seconds to the end of the window, to the nearest.
func TestSeconds(t *testing.T) {
	s := build(t, Config{})
	addr := start(t, s)
	for _, step := range []struct {
		at            time.Duration
		nearest, ceil string
	}{
		{0, "OK true 1 10\n", "OK true 1 10\n"},
		{500 * time.Millisecond, "OK true 0 10\n", "OK true 0 10\n"}, // 9.5 s
		{501 * time.Millisecond, "OK false 0 9\n", "OK false 0 10\n"},
		{9 * time.Second, "OK false 0 1\n", "OK false 0 1\n"},
		{9501 * time.Millisecond, "OK false 0 0\n", "OK false 0 1\n"},
		{10 * time.Second, "OK true 1 10\n", "OK true 1 10\n"}, // another
	} {
		for _, up := range []bool{false, true} {
			ip, want := "nearest", step.nearest
			if up {
				ip, want = "ceil", step.ceil
			}
			s.now, s.cfg.RoundSecondsUp = epoch.Add(step.at), up // no client is connected
			if got := say(t, addr, "HIT ip="+ip+"\n"); got != want {
				t.Errorf("at %v, %s: got %q, want %q", step.at, ip, got, want)
			}
		}
	}
}

// A line may come in any number of packets.
func TestPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := build(t, Config{})
		c := pipe(s)
		for _, request := range []struct {
			packets []string
			want    string
		}{
			{[]string{"HI", "T ip=", "1\r", "\nHIT cookie=\"\xd0"}, "OK true 1 10\n"},
			{[]string{"\xb1 \xf0\x9f", "\x8d\xaa\"", "\n"}, "OK true 8 60\n"},
		} {
			for _, packet := range request.packets {
				send(t, c, packet)
				synctest.Wait()
			}
			if got := line(t, c); got != request.want {
				t.Errorf("got %q, want %q", got, request.want)
			}
		}
		s.Shutdown(t.Context())
	})
}

// With a store that does not answer, requests fail one by one.
func TestStoreTrouble(t *testing.T) {
	store := limitertest.Store(t, memory.Config{})
	var failures []error
	panics := 0
	cfg := Config{Limiter: decide(t, limiter.Config{Backend: lossy{store}})}
	cfg.OnFailure = func(err error) { failures = append(failures, err) } // one at a time
	cfg.OnPanic = func(any, []byte) { panics++ }
	s := build(t, cfg)
	addr := start(t, s)
	const lost = "ERR unknown \"The store did not answer.\"\n"
	for _, tt := range []struct{ said, want string }{
		{"HIT bucket=lost\nHIT ip=1\n", lost},
		{
			"HIT ip=2\nHIT ip=10.0.0.7\nHIT staff=x\nHIT bucket=lost\nHIT ip=2\n",
			"OK true 1 10\nOK false 0 -1\nOK true 4294967295 0\n" + lost,
		},
		{"HIT bucket=panic\nHIT ip=1\n", "ERR unknown \"Internal error.\"\n"},
		{"HIT bucket=misuse\nHIT ip=1\n", "ERR unknown \"Internal error.\"\n"},
		{"HIT ip=3\n", "OK true 1 10\n"},
	} {
		if got := say(t, addr, tt.said); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.said, got, tt.want)
		}
	}
	if len(failures) != 3 || !errors.Is(failures[0], limiter.ErrStoreFailed) ||
		!errors.Is(failures[1], limiter.ErrStoreFailed) || !errors.Is(failures[2], errMisuse) {
		t.Errorf("told of %v", failures)
	}
	if st := s.Stats(); st.Answered != 4 || st.ErrorReplies["unknown"] != 4 ||
		st.ErrorReplies["unknown-command"] != 0 || panics != 1 {
		t.Errorf("got %+v and %d panics", st, panics)
	}
}

var errMisuse = errors.New("misuse")

// lossy is a store that fails for some keys, and for limits of 0.
type lossy struct{ backend.Backend }

func (l lossy) Take(ctx context.Context, b *backend.Batch) error {
	err := l.Backend.Take(ctx, b)
	for i := range b.Hits {
		switch key := string(b.Hits[i].Key); {
		case strings.Contains(key, "panic"):
			panic("too much")
		case strings.Contains(key, "misuse"):
			err = errMisuse
		case strings.Contains(key, "lost"), b.Hits[i].Limit.Max == 0:
			b.Verdicts[i] = backend.Verdict{Err: errors.New("lost")}
		}
	}
	return err
}

// In shadow mode of the whole service even a limit of 0 needs the store's answer.
func TestShadowOfEverything(t *testing.T) {
	store := limitertest.Store(t, memory.Config{})
	addr := start(t, build(t, Config{Limiter: decide(t, limiter.Config{Backend: lossy{store}, ShadowMode: true})}))
	if got := say(
		t, addr, "HIT ip=1\nHIT ip=1\nHIT ip=1\nHIT ip=10.0.0.7\n"); got != "OK true 1 10\nOK true 0 10\nOK true 0 10\nERR "+
		"unknown \"The store did not answer.\"\n" {
		t.Errorf("got %q", got)
	}
}

func TestNotReady(t *testing.T) {
	store := limitertest.Store(t, memory.Config{})
	l := limiter.New(limiter.Config{Backend: store})
	addr := start(t, build(t, Config{Limiter: l}))
	if got := say(t, addr, "HIT ip=1\nHIT ip=1\n"); got != "ERR unknown \"No rules are loaded yet.\"\n" {
		t.Errorf("got %q", got)
	}
	l.UseRules(load(t, pantry))
	if got := say(t, addr, "HIT ip=1\n"); got != "ERR unknown \"No rules are loaded for the domain kitchen.\"\n" {
		t.Errorf("got %q", got)
	}
}

func TestConfig(t *testing.T) {
	l := decide(t, limiter.Config{})
	for _, cfg := range []Config{
		{Domain: "d"},
		{Limiter: l},
		{Limiter: l, Domain: "d", MaxLineBytes: -1},
		{Limiter: l, Domain: "d", MaxLineBytes: pipeline.MaxLargeInputBytes},
		{Limiter: l, Domain: "d", Config: pipeline.Config{MaxConnections: -1}},
		{Limiter: l, Domain: "d", Config: pipeline.Config{MaxPipelined: -1}},
		{Limiter: l, Domain: "d", Config: pipeline.Config{MaxPipelined: limiter.MaxDescriptors + 1}},
		{Limiter: l, Domain: "d", Config: pipeline.Config{WriteTimeout: -1}},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is good", cfg)
		}
	}
	synctest.Test(t, func(t *testing.T) { // what was built and never served ends
		build(t, Config{}).Shutdown(t.Context())
	})
}

// Stats and OnDecisions count the same HITs.
func TestStats(t *testing.T) {
	hits := make(chan int, 10)
	var cfg Config
	cfg.OnDecisions = func(n int, took time.Duration) {
		if took < 0 || took > time.Minute {
			t.Errorf("it took %v", took)
		}
		hits <- n
	}
	s := build(t, cfg)
	addr := start(t, s)
	c := dial(t, addr)
	send(t, c, "HIT ip=1\nHIT ip=1\nHIT ip=1\n")
	for range 3 {
		line(t, c)
	}
	say(t, addr, "EGGPLANT\n")
	say(t, addr, "HIT a\n")
	harness.Until(t, "the other connections are closed", func() bool { return s.Stats().Open == 1 })
	st := s.Stats()
	if st.Open != 1 || st.Accepted != 3 || st.Refused != 0 || st.Answered != 3 || st.ErrorReplies["unknown"] != 1 ||
		st.ErrorReplies["unknown-command"] != 1 {
		t.Errorf("got %+v", st)
	}
	for told := 0; told < 3; {
		told += <-hits
	}
}
