package xdsrules

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules/reload"
	"ratelimit/testbed/xdstest"
)

// lab is a Watcher in a bubble with its own clock and network. The journal has a line for each
// callback.
type lab struct {
	*Watcher
	t     *testing.T
	begin func() // starts Run, which is called by listen and after
	stop  func()

	mu      sync.Mutex // guards what follows
	journal []string
	server  *bufconn.Listener // nil: there is no server
	conns   []*cable
	dials   []time.Duration // since the start
	last    reload.Result
}

// inLab runs a test in a bubble. change, which may be nil, gets the Config.
func inLab(t *testing.T, change func(*Config), test func(t *testing.T, l *lab)) {
	synctest.Test(t, func(t *testing.T) {
		l := &lab{t: t}
		began := time.Now() // the clock stands still until all goroutines wait
		cfg := Config{
			Server: "passthrough:///xds", NodeID: "me",
			Pauses: Pauses{First: time.Second, Initial: 4 * time.Second, Growth: 2, Max: 16 * time.Second},
			Config: reload.Config{OnLoad: func(u reload.Result) {
				l.note("%s", outcomeOf(u))
				l.mu.Lock()
				l.last = u
				l.mu.Unlock()
			}},
			OnConnect: func() { l.note("connected") },
			OnTrouble: func(reason error, pause time.Duration) { l.note("%v: pause %v", reason, pause) },
			OnSilence: func() { l.note("silence") },
		}
		if change != nil {
			change(&cfg)
		}
		var err error
		if l.Watcher, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		l.dialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			l.mu.Lock()
			server := l.server
			l.dials = append(l.dials, time.Since(began))
			l.mu.Unlock()
			if server == nil {
				return nil, errors.New("connection refused")
			}
			conn, err := server.DialContext(ctx)
			if err != nil {
				return nil, errors.New("connection refused")
			}
			c := &cable{Conn: conn, closed: make(chan struct{})}
			l.mu.Lock()
			l.conns = append(l.conns, c)
			l.mu.Unlock()
			return c, nil
		})}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		l.begin = sync.OnceFunc(func() { go func() { ended <- l.Run(ctx) }() })
		l.stop = sync.OnceFunc(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run returned %v", err)
			}
		})
		t.Cleanup(l.stop) // a goroutine that is left then fails the bubble
		test(t, l)
	})
}

// outcomeOf returns version, rules and problems in a line.
func outcomeOf(u reload.Result) string {
	text := fmt.Sprintf("v%s:", u.Version)
	if u.Set == nil && u.Err == nil {
		return text + " nothing"
	}
	if u.Set != nil {
		for _, r := range u.Set.Rules() {
			text += fmt.Sprintf(" %s=%d", r.FullName, r.Limit.Max)
		}
	}
	if u.Err != nil {
		text += " refused: " + strings.ReplaceAll(u.Err.Error(), "\n", " | ")
	}
	return text
}

func (l *lab) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.journal = append(l.journal, fmt.Sprintf(format, args...))
}

// after waits for d, and compares the journal since the last call.
func (l *lab) after(d time.Duration, want ...string) {
	l.t.Helper()
	l.begin()
	time.Sleep(d)
	synctest.Wait()
	l.mu.Lock()
	got := l.journal
	l.journal = nil
	l.mu.Unlock()
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		l.t.Errorf("told\n%s\nwant\n%s", g, w)
	}
}

// listen starts to accept connections.
func (l *lab) listen() net.Listener {
	server := bufconn.Listen(64 << 10)
	l.mu.Lock()
	l.server = server
	l.mu.Unlock()
	l.begin()
	return server
}

func (l *lab) dialled() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dials
}

// cable is a connection that can be cut without a signal to either side.
type cable struct {
	net.Conn
	dead   atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (c *cable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.dead.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *cable) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *cable) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// cut cuts all connections so far.
func (l *lab) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.dead.Store(true)
	}
}

// limit returns a domain with one rule, for the key k.
func limit(name string, perMinute uint32) *configv3.RateLimitConfig {
	return &configv3.RateLimitConfig{Name: name, Domain: name, Descriptors: []*configv3.RateLimitDescriptor{{
		Key: "k", RateLimit: &configv3.RateLimitPolicy{Unit: configv3.RateLimitUnit_MINUTE, RequestsPerUnit: perMinute},
	}}}
}

// manage starts go-control-plane's server.
func (l *lab) manage(opts ...grpc.ServerOption) *xdstest.Server {
	return xdstest.Start(l.t, l.listen(), opts...)
}
