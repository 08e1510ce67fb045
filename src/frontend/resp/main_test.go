package resp

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/limitertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	apiRules = `
domain: api
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 5}
    descriptors:
      - key: path
        value: login
        rate_limit: {algorithm: gcra, unit: minute, requests_per_unit: 2}
  - key: banned
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
  - key: job
    rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: 30s, hold_id: id}
`
	treeRules = `
schema:
  user:
    children:
      "*":
        limits: [15, 30, 60]
        children:
          trade:
            limits: [5, 10, 15]
`
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func loadRules(tb testing.TB) *rules.Set {
	tb.Helper()
	return limitertest.Load(tb, []filerules.File{
		{Name: "api.yaml", Data: []byte(apiRules)},
		{Name: "limits.yaml", Data: []byte(treeRules)},
	})
}

// counting is a store that counts its calls.
type counting struct {
	backend.Backend
	calls int
}

func (c *counting) Take(ctx context.Context, b *backend.Batch) error {
	c.calls++
	return c.Backend.Take(ctx, b)
}

func newStore(tb testing.TB) backend.Backend {
	tb.Helper()
	return limitertest.Store(tb, memory.Config{MaxBytes: memory.MinBytes})
}

// build returns a server at the epoch.
func build(tb testing.TB, cfg Config) *Server {
	tb.Helper()
	if cfg.Limiter == nil {
		l := limiter.New(limiter.Config{Backend: newStore(tb)})
		l.UseRules(loadRules(tb))
		cfg.Limiter = l
	}
	if cfg.OnPanic == nil {
		cfg.OnPanic = func(value any, stack []byte) { tb.Errorf("panic: %v\n%s", value, stack) }
	}
	cfg.MaxPollers = 1
	s, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	s.now = epoch
	return s
}

var (
	loopback  = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1000}
	elsewhere = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1000}
)

// play returns the replies to a client at addr that sends these packets.
func play(s *Server, addr net.Addr, packets ...[]byte) string {
	return harness.PlayPackets(s.StartConn, addr, packets...)
}

// exchange is a command, and the reply in a short form: lines are separated by blanks.
type exchange struct{ command, reply string }

// converse plays a conversation on one connection and compares the replies.
func converse(t *testing.T, s *Server, addr net.Addr, talk []exchange) {
	t.Helper()
	var input, want strings.Builder
	for _, e := range talk {
		input.WriteString(e.command + "\r\n")
		want.WriteString(e.command + " -> " + e.reply + "\n")
	}
	replies := splitReplies(t, play(s, addr, []byte(input.String())))
	var got strings.Builder
	for i, e := range talk {
		if i < len(replies) {
			got.WriteString(e.command + " -> " + replies[i] + "\n")
		}
	}
	if got.String() != want.String() || len(replies) != len(talk) {
		t.Errorf("%d replies:\n%s\nwant\n%s", len(replies), got.String(), want.String())
	}
}

// splitReplies returns each reply in one line. It knows the protocol only as far as this server speaks it.
func splitReplies(t *testing.T, text string) (replies []string) {
	t.Helper()
	for text != "" {
		n := replyLen(text)
		if n <= 0 {
			t.Fatalf("%q is no reply", text)
		}
		replies = append(replies, strings.TrimSuffix(strings.ReplaceAll(text[:n], "\r\n", " "), " "))
		text = text[n:]
	}
	return replies
}

// replyLen returns the length of the reply that text starts with; 0 if it is no whole reply.
func replyLen(text string) int {
	line, _, ok := strings.Cut(text, "\r\n")
	if !ok || line == "" {
		return 0
	}
	end, n := len(line)+2, 0
	count, isNumber := parseInteger([]byte(line[1:]))
	switch line[0] {
	case '+', '-', '_':
		return end
	case ':':
		if isNumber {
			return end
		}
		return 0
	case '$', '=':
		if count >= 0 {
			end += int(count) + 2
		}
		if !isNumber || end > len(text) || !strings.HasSuffix(text[:end], "\r\n") {
			return 0
		}
		return end
	case '*':
		n = int(count)
	case '%':
		n = 2 * int(count)
	default:
		return 0
	}
	for range n {
		more := replyLen(text[end:])
		if more == 0 {
			return 0
		}
		end += more
	}
	return end
}

// bulk returns a command as clients send it.
func bulk(args ...string) []byte {
	b := appendArray(nil, len(args))
	for _, arg := range args {
		b = appendBulk(b, arg)
	}
	return b
}
