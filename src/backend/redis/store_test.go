package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/redis/credentials"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/backendtest"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

// me is a user with a password.
var me = credentials.PerConnection(func() (string, string, error) { return "me", "secret", nil })

// open runs a store until the test ends.
func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	harness.RunInBackground(t, s.Run)
	return s
}

func clientTLS(t *testing.T, certs *harness.Certificates) func() (*tls.Config, error) {
	cfg := certs.ClientConfig(t)
	return func() (*tls.Config, error) { return cfg, nil }
}

// some is for what is about the way to Redis, whatever travels on it.
var some = backendtest.Suite{
	Kinds: []algorithm.Kind{algorithm.FixedWindow, algorithm.GCRA}, UpstreamCounts: true,
	NoHolds: true, Brief: true,
}

func TestSuite(t *testing.T) {
	t.Parallel()
	certs, rights := harness.NewCertificates(t), documentedRights(t)
	for _, tt := range []struct {
		name    string
		suite   backendtest.Suite
		options redistest.Options
		config  func(*redistest.Server) Config
	}{
		{
			"tcp, with a right to the documented commands only",
			backendtest.Suite{UpstreamCounts: true},
			redistest.Options{},
			func(s *redistest.Server) Config {
				s.Do(t, rights...)
				return Config{Addr: s.Addr, Credentials: me}
			},
		},
		{"unix socket", some, redistest.Options{UnixSocket: true}, func(s *redistest.Server) Config {
			return Config{Network: "unix", Addr: s.Socket, Config: remote.Config{Connections: 1}}
		}},
		{
			"TLS and a password", some,
			redistest.Options{TLS: certs, User: "me", Password: "secret"},
			func(s *redistest.Server) Config {
				return Config{
					Addr:        s.Addr,
					Credentials: me,
					Config: remote.Config{
						TLS: clientTLS(t, certs),
					},
				}
			},
		},
		{"a limit on batches", some, redistest.Options{}, func(s *redistest.Server) Config {
			return Config{
				Addr: s.Addr, PipelineLimit: 3,
				Config: remote.Config{Connections: 4, ExpirationJitter: 300 * time.Second},
			}
		}},
		{"tagged keys", some, redistest.Options{}, func(s *redistest.Server) Config {
			return Config{Addr: s.Addr, Config: remote.Config{TagKeys: true}}
		}},
		{"a window", some, redistest.Options{}, func(s *redistest.Server) Config {
			return Config{Addr: s.Addr, Config: remote.Config{PipelineWindow: 100 * time.Microsecond}}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, tt.options)
			cfg := tt.config(server)
			cfg.DialTimeout = 20 * time.Second // handshakes of TLS on a busy machine
			store := open(t, cfg)
			tt.suite.Run(t, func(t *testing.T) backend.Backend {
				server.Do(t, "FLUSHALL")
				return store
			})
		})
	}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func window(limit uint64, period time.Duration) *algorithm.Limit {
	return &algorithm.Limit{Max: limit, Period: period, CountBlocked: true}
}

// send sends one hit at epoch.
func send(t testing.TB, s backend.Backend, h backend.Hit) backend.Verdict {
	t.Helper()
	b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
	if err := s.Take(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Verdicts[0]
}

// A live envoyproxy/ratelimit can share the Redis: we go on from what it
// counted, and it from what we count.
func TestKeysAreUpstreams(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr})
	const key = "domain_k1_v1_k2_v2_1767225600"
	server.Do(t, "INCRBY", key, "3")
	server.Do(t, "EXPIRE", key, "86400")
	h := backend.Hit{
		Key: []byte("domain_k1_v1_k2_v2_"), TagLength: len("domain_k1_v1_"),
		Limit: window(10, 24*time.Hour), Amount: 2,
	}
	if v := send(t, s, h); v.Before != 3 || v.After != 5 {
		t.Errorf("we see %+v", v)
	}
	if got := fmt.Sprint(server.Do(t, "GET", key)); got != "5" {
		t.Errorf("upstream sees %s", got)
	}
	h.Limit = window(10, 5*time.Minute)
	send(t, s, h)
	if got := fmt.Sprint(server.Do(t, "GET", "{domain_k1_v1_}k2_v2_|fw:300:1767225600")); got != "2" {
		t.Errorf("five minutes are kept as %s", got)
	}
}

// With TagKeys a live upstream is left alone.
func TestTagKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{TagKeys: true}})
	server.Do(t, "SET", "domain_k1_v1_k2_v2_1767225600", "3")
	h := backend.Hit{
		Key: []byte("domain_k1_v1_k2_v2_"), TagLength: len("domain_k1_v1_"),
		Limit: window(10, 24*time.Hour), Amount: 2,
	}
	if v := send(t, s, h); v.Before != 0 || v.After != 2 {
		t.Errorf("we see %+v", v)
	}
	if got := fmt.Sprint(server.Do(t, "GET", "{domain_k1_v1_}k2_v2_|fw:86400:1767225600")); got != "2" {
		t.Errorf("a day is kept as %s", got)
	}
	h.Limit = window(10, time.Hour) // begins at the same second
	if v := send(t, s, h); v.Before != 0 {
		t.Errorf("an hour shares the counter of a day: %+v", v)
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Connections: 1}})
	ttl := func(key string) int64 {
		n, _ := server.Do(t, "TTL", key).(int64)
		return n
	}
	h := backend.Hit{Key: []byte("k_"), Limit: window(10, time.Hour), Amount: 1}
	const key = "k_1767225600"
	for range 3 {
		send(t, s, h)
	}
	if got := ttl(key); got < 3590 || got > 3600 {
		t.Errorf("%d seconds to live, want 3600", got)
	}
	// Sent once, not with every hit.
	server.Do(t, "EXPIRE", key, "100")
	send(t, s, h)
	if got := ttl(key); got > 100 {
		t.Errorf("%d seconds to live: EXPIRE came again", got)
	}
	// A key that Redis lost gets its time to live again.
	server.Do(t, "FLUSHALL")
	send(t, s, h)
	harness.Await(t, 10*time.Second, "a time to live for the key that was lost", func() error {
		if got := ttl(key); got < 3500 {
			return fmt.Errorf("%d seconds", got)
		}
		return nil
	})
	// Scripts see to it themselves.
	h.Atomic = true
	server.Do(t, "FLUSHALL")
	send(t, s, h)
	if got := ttl(key); got < 3590 {
		t.Errorf("%d seconds to live after a script", got)
	}
	// A longer window on the same key prolongs it, in a batch of its own and in one
	// with the shorter, and a shorter one does not cut it.
	short := backend.Hit{Key: []byte("l_"), Limit: window(10, time.Hour), Amount: 1}
	long := short
	long.Limit = window(10, 24*time.Hour)
	send(t, s, short)
	if got := ttl("l_1767225600"); got > 3600 {
		t.Errorf("%d seconds to live for an hour", got)
	}
	send(t, s, long)
	send(t, s, short)
	if got := ttl("l_1767225600"); got < 86390 {
		t.Errorf("%d seconds to live once a day was counted there", got)
	}
	short.Key = []byte("n_")
	long.Key, long.Atomic = short.Key, true
	send(t, s, short)
	send(t, s, long)
	if got := ttl("n_1767225600"); got < 86390 {
		t.Errorf("%d seconds to live once a script counted a day there", got)
	}
	short.Key, long.Atomic = []byte("m_"), false
	long.Key = short.Key
	both := &backend.Batch{Hits: []backend.Hit{short, long, short}, Verdicts: make([]backend.Verdict, 3), Now: epoch}
	if err := s.Take(t.Context(), both); err != nil {
		t.Fatal(err)
	}
	if got := ttl("m_1767225600"); got < 86390 {
		t.Errorf("%d seconds to live for an hour and a day at the same time", got)
	}
}

// TestCalendarExpiry checks that counters of a calendar expire a minute after their border, by command and by script.
func TestCalendarExpiry(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Connections: 1}})
	calendar, err := algorithm.NewCalendar(algorithm.CalendarSpec{
		Unit: algorithm.CalendarMonth, Units: 1,
		AnchorDay: 5, Location: time.UTC,
	})
	if err != nil {
		t.Fatal(err)
	}
	limit := window(10, 30*24*time.Hour)
	limit.Calendar = calendar
	for _, atomic := range []bool{false, true} {
		server.Do(t, "FLUSHALL")
		h := backend.Hit{Key: []byte("k_"), Limit: limit, Amount: 1, Atomic: atomic}
		send(t, s, h)
		send(t, s, h)
		const key = "{k_}|fw:1month/5/UTC:1764892800" // 5 December 2025
		if got := fmt.Sprint(server.Do(t, "GET", key)); got != "2" {
			t.Errorf("atomic %t: the count is %s, want 2", atomic, got)
		}
		const want = 4*24*3600 + 60
		if got, _ := server.Do(t, "TTL", key).(int64); got < want-10 || got > want {
			t.Errorf("atomic %t: %d seconds to live, want %d", atomic, got, want)
		}
	}
}

// A batch that is decided ahead counts in the next window, whose counter lives until its end.
func TestCountsAhead(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr})
	h := backend.Hit{Key: []byte("k_"), Limit: window(10, time.Hour), Amount: 3}
	next := time.Now().Truncate(time.Hour).Add(time.Hour)
	b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Ahead: time.Until(next) + time.Second}
	if err := s.Take(t.Context(), &b); err != nil || b.Verdicts[0].WindowEnd != next.Add(time.Hour).UnixNano() {
		t.Errorf("%v, %+v", err, b.Verdicts[0])
	}
	key, want := fmt.Sprint("k_", next.Unix()), int64(time.Until(next.Add(time.Hour)).Seconds())
	if got := fmt.Sprint(server.Do(t, "GET", key)); got != "3" {
		t.Errorf("the count of %s is %s, want 3", key, got)
	}
	if got, _ := server.Do(t, "TTL", key).(int64); got < want || got > want+10 {
		t.Errorf("%d seconds to live, want %d", got, want)
	}
}

// Keys of one window do not all expire at once.
func TestJitterSpreads(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	ttl := func(key string) int64 {
		n, _ := server.Do(t, "TTL", key).(int64)
		return n
	}
	spread := open(t, Config{Addr: server.Addr, Config: remote.Config{ExpirationJitter: 300 * time.Second}})
	seen := make(map[int64]bool)
	for i := range 50 {
		send(t, spread, backend.Hit{Key: fmt.Appendf(nil, "j%d_", i), Limit: window(10, time.Hour), Amount: 1})
		got := ttl(fmt.Sprintf("j%d_1767225600", i))
		seen[got] = true
		if got < 3590 || got > 3900 {
			t.Errorf("%d seconds to live", got)
		}
	}
	if len(seen) < 10 {
		t.Errorf("%d different times to live in 50 keys", len(seen))
	}
}

// An EXPIRE without an answer is sent again with the next hit, be it one that
// went with an INCRBY or one for a key that Redis lost.
func TestExpiryIsNotGivenUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		counts  []int // what Redis says to one INCRBY after the other
		expires []int // how many EXPIREs there were by the end of each call
		fails   int   // the EXPIRE that breaks the connection
	}{
		{"of a new key", []int{1, 2, 3}, []int{1, 2, 2}, 1},
		{"of a key that was lost", []int{1, 1, 2, 3}, []int{1, 2, 3, 3}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var incrs, expires atomic.Int64
			s := open(t, Config{Addr: parrot(t, func(words []string) string {
				switch {
				case words[0] == "PING", !strings.HasPrefix(words[1], "hot_"):
					return ":1\r\n"
				case words[0] == "INCRBY":
					return fmt.Sprintf(":%d\r\n", tt.counts[incrs.Add(1)-1])
				case expires.Add(1) == int64(tt.fails):
					return "?\r\n"
				}
				return ":1\r\n"
			}), Config: remote.Config{Connections: 1}})
			for i, want := range tt.expires {
				// the connection works: if it breaks, the next is made at once
				send(t, s, spread(i))
				if v := send(t, s, hot(0)); (v.Err != nil) != (i == 0 && tt.fails == 1) { // its connection broke
					t.Error(v.Err)
				}
				harness.Await(t, 10*time.Second, fmt.Sprintf("EXPIRE after call %d", i), func() error {
					if got := expires.Load(); got != int64(want) {
						return fmt.Errorf("sent %d times, want %d", got, want)
					}
					return nil
				})
			}
		})
	}
}

// A Redis user without the right to set an expiry must not fill Redis in silence.
func TestExpiryIsForbidden(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	server.Do(t, "ACL", "SETUSER", "default", "-expire")
	s := open(t, Config{Addr: server.Addr})
	for i, atomicHit := range []bool{false, true} {
		h := spread(i)
		h.Atomic = atomicHit
		if v := send(t, s, h); v.Err == nil {
			t.Errorf("got %+v", v)
		}
	}
	if n := s.Stats().ErrorsByCause["auth"]; n == 0 {
		t.Errorf("%d errors of this sort", n)
	}
}

// What Redis says of one key is that key's alone.
func TestErrorReplies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr})
	server.Do(t, "LPUSH", "list_1767225600", "x")
	server.Do(t, "SET", "text_1767225600", "x")
	server.Do(t, "SET", "full_1767225600", "9223372036854775800")
	server.Do(t, "SET", "below_1767225600", "-5")
	hit := func(key string, op algorithm.Op) backend.Hit {
		return backend.Hit{Key: []byte(key), Limit: window(10, time.Hour), Amount: 100, Op: op}
	}
	b := backend.Batch{Now: epoch, Hits: []backend.Hit{
		hit("list_", algorithm.Charge), hit("text_", algorithm.Charge), hit("full_", algorithm.Charge), hit("good_",
			algorithm.Charge),
		hit("list_", algorithm.Refund), hit("text_", algorithm.Look), hit("below_", algorithm.Charge),
	}}
	for i := range b.Hits {
		b.Hits[i].GroupID = uint16(i)
	}
	b.Verdicts = make([]backend.Verdict, len(b.Hits))
	if err := s.Take(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	for i, failed := range []bool{true, true, false, false, true, true, false} {
		if (b.Verdicts[i].Err != nil) != failed {
			t.Errorf("hit %d: %+v", i, b.Verdicts[i])
		}
	}
	if v := b.Verdicts[2]; !v.Over {
		t.Errorf("a counter at its end: %+v", v)
	}
	if v := b.Verdicts[3]; v.Err != nil || v.After != 100 {
		t.Errorf("the key beside them: %+v", v)
	}
	if n := s.Stats().FailedBatches; n != 0 {
		t.Errorf("%d batches failed for it", n)
	}
}

func TestWrongCredentials(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{Password: "secret"})
	password := atomic.Pointer[string]{}
	wrong, right := "guess", "secret"
	password.Store(&wrong)
	s := open(t, Config{Addr: server.Addr, Credentials: credentials.PerConnection(func() (string, string, error) {
		return "", *password.Load(), nil
	})})
	h := backend.Hit{Key: []byte("k_"), Limit: window(10, time.Hour), Amount: 1}
	v := send(t, s, h)
	if v.Err == nil || strings.Contains(v.Err.Error(), "guess") {
		t.Errorf("got %v", v.Err)
	}
	if err := s.Ping(t.Context()); err == nil {
		t.Error("a ping got through")
	}
	password.Store(&right) // as if the file had changed
	harness.Await(t, 10*time.Second, "the right password", func() error { return send(t, s, h).Err })
}

// The server learns the name by which it was called, whether or not that is in
// its certificate.
func TestServerName(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	pair, err := tls.LoadX509KeyPair(certs.WrongHost.Cert, certs.WrongHost.Key)
	if err != nil {
		t.Fatal(err)
	}
	names := make(chan string, 16)
	l, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			names <- hello.ServerName
			return &pair, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	parrotAt(t, l, func([]string) string { return ":1\r\n" })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, skip := range []bool{false, true} {
		s := open(t, Config{Addr: "localhost:" + port, Config: remote.Config{TLS: func() (*tls.Config, error) {
			return &tls.Config{InsecureSkipVerify: skip}, nil
		}}})
		if v := send(t, s, hot(0)); (v.Err == nil) != skip {
			t.Errorf("skip %t: %v", skip, v.Err)
		}
		if name := <-names; name != "localhost" {
			t.Errorf("skip %t: it was called %q", skip, name)
		}
	}
}

// Batches and calls are told of.
func TestHooks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	var hits atomic.Int64
	var spans []string // of one caller
	s := open(t, Config{
		Addr: server.Addr,
		Config: remote.Config{
			OnBatch: func(n int, took time.Duration) { hits.Add(int64(n)) },
			StartSpan: func(_ context.Context, n int) func(error) {
				return func(err error) { spans = append(spans, fmt.Sprintf("%d %v", n, err)) }
			},
		},
	})
	send(t, s, backend.Hit{Key: []byte("k_"), Limit: window(10, time.Hour), Amount: 1})
	server.Do(t, "LPUSH", "list_1767225600", "x")
	send(t, s, backend.Hit{Key: []byte("list_"), Limit: window(10, time.Hour), Amount: 1})
	if len(spans) != 2 || spans[0] != "1 <nil>" || !strings.HasPrefix(spans[1], "1 redis: WRONGTYPE") {
		t.Errorf("spans: %q", spans)
	}
	if got := hits.Load(); got != 2 {
		t.Errorf("%d hits in batches, want 2", got)
	}
	if st := s.Stats(); st.ErrorsByCause["reply"] != 1 || st.Servers != 1 || st.Batches != 2 {
		t.Errorf("got %+v", st)
	}
}

func TestCauses(t *testing.T) {
	t.Parallel()
	late, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	_, dialLate := new(net.Dialer).DialContext(late, "tcp", "127.0.0.1:1")
	if !errors.Is(dialLate, context.DeadlineExceeded) {
		t.Errorf("got %v", dialLate)
	}
	for _, tt := range []struct {
		err  error
		want string
	}{
		{remote.ErrTimeout, "timeout"},
		{fmt.Errorf("redis: %w", context.DeadlineExceeded), "timeout"},
		{fmt.Errorf("redis: %w", context.Canceled), "left"},
		{remote.ErrTooManyCalls, "busy"},
		{&remote.LinkError{Store: "redis", Addr: "a:1", WhileConnecting: true, Err: errors.New("refused")}, "connect"},
		{&remote.LinkError{Store: "redis", Addr: "a:1", WhileConnecting: true, Err: dialLate}, "connect"},
		{&remote.LinkError{Store: "redis", Addr: "a:1", WhileConnecting: true, Err: context.Canceled}, "connect"},
		{&remote.LinkError{Store: "redis", Addr: "a:1", WhileConnecting: true, Err: errNotPrimary}, "read_only"},
		{&remote.LinkError{
			Store: "redis", Addr: "a:1", WhileConnecting: true,
			Err: fmt.Errorf("AUTH: %w", Error("WRONGPASS no")),
		}, "auth"},
		{&remote.LinkError{Store: "redis", Addr: "a:1", Err: remote.ErrStalled}, "connection"},
		{Error("NOPERM no"), "auth"},
		{Error("READONLY no"), "read_only"},
		{Error("LOADING wait"), "loading"},
		{Error("ERR Error running script (call to f_f742): @user_script:5: @user_script: 5: -READONLY You can't write " +
			"against a read only replica."), "read_only"},
		{Error("ERR Error running script (call to f_f742): @user_script:5: -OOM no"), "memory"},
		{Error("ERR Error running script (call to f_f742): @user_script:5: WRONGTYPE no"), "reply"},
		{Error("OOM command not allowed when used memory > 'maxmemory'. script: f742, on @user_script:34."), "memory"},
		{Error("OOM full"), "memory"},
		{Error("CLUSTERDOWN no"), "cluster"},
		{remote.ErrSlotWithoutNode, "cluster"},
		{&remote.Redirect{Err: Error("MOVED 1 a:1")}, "cluster"},
		{Error("WRONGTYPE no"), "reply"},
		{new(remote.OpenError), "breaker"},
		{remote.ErrClosed, "other"},
	} {
		if got := causeOf(tt.err); got != tt.want {
			t.Errorf("%v is counted as %s, want %s", tt.err, got, tt.want)
		}
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{},
		{Sentinel: &Sentinel{Primary: "p"}},
		{Sentinel: &Sentinel{Addrs: []string{"a:1"}}},
		{Cluster: []string{}},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("no error from %+v", cfg)
		}
	}
}

// documentedRights returns a command that makes the user "me", who may send only the commands that docs/redis.md lists.
func documentedRights(t *testing.T) []any {
	t.Helper()
	page := testfiles.Read(t, "../../../docs/redis.md")
	_, text, found := strings.Cut(string(page), "| for | commands |\n")
	text, _, ends := strings.Cut(text, "| Cluster |")
	if !found || !ends {
		t.Fatal("docs/redis.md has no table of the commands")
	}
	acl := []any{"ACL", "SETUSER", "me", "reset", "on", ">secret", "~*"}
	for _, m := range regexp.MustCompile("`([A-Z]+)`").FindAllStringSubmatch(text, -1) {
		acl = append(acl, "+"+strings.ToLower(m[1]))
	}
	if len(acl) < 20 {
		t.Fatalf("only %v", acl)
	}
	return acl
}
