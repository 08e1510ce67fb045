package xdsrules

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules/compile"
	"ratelimit/testbed/xdstest"
)

// requestsOf is what the server was told: version, nonce and error of each request.
func requestsOf(s *xdstest.Server) string {
	var b strings.Builder
	for _, r := range s.Requests() {
		fmt.Fprintf(&b, "version %q nonce %q", r.GetVersionInfo(), r.GetResponseNonce())
		if r.GetErrorDetail() != nil {
			fmt.Fprintf(&b, " error %q", r.GetErrorDetail().GetMessage())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func expectSaid(t *testing.T, s *xdstest.Server, want ...string) {
	t.Helper()
	if got, want := requestsOf(s), strings.Join(want, "\n")+"\n"; got != want {
		t.Errorf("the server was told\n%swant\n%s", got, want)
	}
}

func TestAckAndNack(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		s := l.manage()
		s.Publish(t, "me", "1", limit("a", 1), limit("b", 2))
		s.Publish(t, "you", "9", limit("z", 9))
		l.after(time.Second, "connected", "v1: a.k=1 b.k=2")
		s.Publish(t, "me", "2", limit("a", 3))
		l.after(time.Second, "v2: a.k=3")
		s.Publish(t, "me", "3", limit("a", 3), &configv3.RateLimitConfig{Name: "c"})
		const problem = "xds resource \"c\": the domain is missing or empty; add `domain: <name>`, the name that callers " +
			"ask for"
		l.after(50*time.Millisecond, "v3: refused: "+problem)
		expectSaid(t, s, `version "" nonce ""`, `version "1" nonce "1"`, `version "2" nonce "2"`,
			fmt.Sprintf(`version "2" nonce "3" error %q`, problem))
		s.Publish(t, "me", "4")
		l.after(10*time.Second, "v4:")
		s.Publish(t, "me", "5", limit("a", 1))
		l.after(time.Second, "v5: a.k=1")
		if got := l.Stats(); got.Connected.Load() != 1 || got.Streams.Load() != 1 || got.Failures.Load() != 0 ||
			got.Acks.Load() != 4 || got.Nacks.Load() == 0 {
			t.Errorf("got %+v", got)
		}
		if l.last.PartCount != 1 || len(l.last.Hash) != 16 {
			t.Errorf("got %+v", l.last)
		}
		l.stop()
		if l.Stats().Connected.Load() != 0 {
			t.Error("still connected")
		}
	})
}

// A SnapshotCache sends what was refused again and again.
func TestRefusalsSlowDown(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		s := l.manage()
		s.Publish(t, "me", "1", &configv3.RateLimitConfig{Domain: "c", Descriptors: []*configv3.RateLimitDescriptor{{}}})
		const problem = "v1: refused: xds resource 1: descriptors[0]: the descriptor has no key, or an empty one; add " +
			"`key: <name>`"
		l.after(time.Minute, "connected", problem)
		if n := l.Stats().Nacks.Load(); n < 10 || n > 20 { // 0.1 + 0.2 + ... + 3.2s, and then one in 5s
			t.Errorf("%d refusals in a minute", n)
		}
		s.Publish(t, "me", "2", limit("a", 1))
		l.after(5*time.Second, "v2: a.k=1")
		// Refused once more, it begins at once.
		s.Publish(t, "me", "1", &configv3.RateLimitConfig{Domain: "c", Descriptors: []*configv3.RateLimitDescriptor{{}}})
		l.after(time.Second, problem)
	})
}

func TestWhoAsks(t *testing.T) {
	inLab(t, func(c *Config) {
		c.NodeMetadata = map[string]string{"zone": "a", "pod": "p=1"}
		c.Headers = func() (map[string]string, error) {
			return map[string]string{"authorization": "Bearer x", "x-tenant": "t"}, nil
		}
	}, func(t *testing.T, l *lab) {
		s := l.manage()
		s.Publish(t, "me", "1")
		l.after(time.Second, "connected", "v1:")
		requests := s.Requests()
		if n := requests[len(requests)-1].GetNode(); n.GetId() != "me" || len(n.GetMetadata().GetFields()) != 2 ||
			n.GetMetadata().GetFields()["pod"].GetStringValue() != "p=1" {
			t.Errorf("node %v", n)
		}
		h := s.Headers()[0]
		if !slices.Equal(h.Get("authorization"), []string{"Bearer x"}) || !slices.Equal(h.Get("x-tenant"), []string{"t"}) {
			t.Errorf("headers %v", h)
		}
		for _, r := range s.Requests() {
			if r.GetTypeUrl() != TypeURL || len(r.GetResourceNames()) > 0 {
				t.Errorf("asked for %v", r)
			}
		}
	})
}

// Each stream gets the headers of its time. Without headers there is no stream, and the reason is told.
func TestHeadersChange(t *testing.T) {
	var token atomic.Pointer[string]
	set := func(text string) { token.Store(&text) }
	set("Bearer 1")
	inLab(t, func(c *Config) {
		c.Headers = func() (map[string]string, error) {
			if text := *token.Load(); text != "" {
				return map[string]string{"authorization": text}, nil
			}
			return nil, errors.New("no token")
		}
	}, func(t *testing.T, l *lab) {
		s := l.manage()
		s.Publish(t, "me", "1", limit("a", 1))
		l.after(time.Second, "connected", "v1: a.k=1")
		set("Bearer 2")
		l.Reload()
		l.after(time.Second, "connected", "v1: a.k=1")
		set("")
		l.Reload()
		l.after(100*time.Millisecond, "xds server passthrough:///xds: no token: pause 1s")
		set("Bearer 3")
		l.after(time.Second, "connected", "v1: a.k=1")
		var got []string
		for _, h := range s.Headers() {
			got = append(got, h.Get("authorization")...)
		}
		if want := []string{"Bearer 1", "Bearer 2", "Bearer 3"}; !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
	})
}

// Resources with a time to live come in envelopes, with heartbeats.
func TestEnvelopes(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		s := l.manage()
		ttl := time.Minute
		s.PublishTTL(t, "me", "1", []types.ResourceWithTTL{{Resource: limit("a", 1), TTL: &ttl}, {Resource: limit("b", 2)}})
		l.after(time.Second, "connected", "v1: a.k=1 b.k=2")
		l.after(time.Hour)
		s.PublishTTL(t, "me", "2", []types.ResourceWithTTL{{Resource: limit("", 1), TTL: &ttl}})
		l.after(time.Second, "v2: refused: xds resource 1: the domain is missing or empty; add `domain: <name>`, the name "+
			"that callers ask for")
	})
}

// The order of a map is no change, and does not decide which rule is first.
func TestOrder(t *testing.T) {
	inLab(t, func(c *Config) { c.Options = compile.Options{MergeDomains: true} }, func(t *testing.T, l *lab) {
		s := l.manage()
		var parts []*configv3.RateLimitConfig
		for i := range 8 {
			part := limit(string(rune('a'+i)), 1)
			part.Domain = "d"
			part.Descriptors[0].Key = fmt.Sprintf("k%d", i)
			parts = append(parts, part)
		}
		hashes := make(map[string]bool)
		for v := range 8 {
			version := fmt.Sprint(v)
			s.Publish(t, "me", version, parts...)
			want := []string{"v" + version + ": d.k0=1 d.k1=1 d.k2=1 d.k3=1 d.k4=1 d.k5=1 d.k6=1 d.k7=1"}
			if v == 0 {
				want = append([]string{"connected"}, want...)
			}
			l.after(time.Second, want...)
			hashes[l.last.Hash] = true
		}
		if len(hashes) != 1 {
			t.Errorf("hashes %v", hashes)
		}
	})
}

// Rules stay when the server goes, and what it has when it comes back counts, be
// it older.
func TestServerRestarts(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		s := l.manage()
		s.Publish(t, "me", "5", limit("a", 5))
		l.after(time.Minute, "connected", "v5: a.k=5")
		s.Stop()
		l.after(500*time.Millisecond, "xds server passthrough:///xds: error reading from server: EOF: pause 1s")
		if l.Stats().Connected.Load() != 0 {
			t.Error("still connected")
		}
		s = l.manage()
		s.Publish(t, "me", "5", limit("a", 5))
		l.after(time.Second, "connected") // what it had: nothing to tell
		expectSaid(t, s, `version "" nonce ""`, `version "5" nonce "1"`)
		s.Stop()
		s = l.manage()
		s.Publish(t, "me", "3", limit("a", 3))
		l.after(time.Second, "xds server passthrough:///xds: error reading from server: EOF: pause 4s") // it did not last
		l.after(4*time.Second, "connected", "v3: a.k=3")
		s.Publish(t, "me", "4", limit("a", 3))
		l.after(time.Second, "v4: a.k=3")
	})
}

func TestReload(t *testing.T) {
	inLab(t, nil, func(t *testing.T, l *lab) {
		l.after(100*time.Millisecond, "xds server passthrough:///xds: connection error: desc = \"transport: Error while "+
			"dialing: connection refused\"; is CONFIG_GRPC_XDS_SERVER_URL right, and does the server run?: pause 1s")
		s := l.manage()
		s.Publish(t, "me", "1", limit("a", 1))
		l.Reload() // ends the pause
		l.after(100*time.Millisecond, "connected", "v1: a.k=1")
		l.Reload()
		l.after(time.Second, "connected", "v1: a.k=1")
		l.after(time.Minute)
	})
}

func TestNew(t *testing.T) {
	for server, ok := range map[string]bool{
		"localhost:18000": true, "unix:///run/x.sock": true, "[::1]:18000": true,
		":18000": true, "%zz": false, "": false,
	} {
		if _, err := New(Config{Server: server}); (err == nil) != ok {
			t.Errorf("%q: %v", server, err)
		}
	}
}
