package differential

import (
	"bufio"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"ratelimit/testbed/harness"
)

// sink is a statsd server that adds up counters.
type sink struct {
	port string

	mu       sync.Mutex
	counters map[string]int64 // by name, since the start of the sink
}

func startSink(t *testing.T) *sink {
	t.Helper()
	listener := harness.Listen(t)
	s := &sink{counters: make(map[string]int64)}
	_, s.port, _ = net.SplitHostPort(listener.Addr().String()) // The address of a TCP listener has a port.
	var readers sync.WaitGroup
	readers.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			readers.Go(func() { s.read(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // nothing is written to it
		readers.Wait()
	})
	return s
}

// read adds up the counters of one connection. The program at its other end ends it.
func (s *sink) read(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		text, ok := strings.CutSuffix(lines.Text(), "|c")
		colon := strings.LastIndexByte(text, ':')
		if !ok || colon < 0 {
			continue
		}
		if n, err := strconv.ParseInt(text[colon+1:], 10, 64); err == nil {
			s.mu.Lock()
			s.counters[text[:colon]] += n
			s.mu.Unlock()
		}
	}
}

// snapshot returns the counters whose names begin with one of the prefixes.
func (s *sink) snapshot(prefixes ...string) map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.counters)
	maps.DeleteFunc(all, func(name string, _ int64) bool {
		return !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
	return all
}

// comparedCounters begin the names of the counters that are compared.
var comparedCounters = []string{
	serviceStats + "rate_limit.", serviceStats + "call.", serviceStats + "global_shadow_mode",
	"ratelimit_server.ShouldRateLimit.total_requests",
}

// serviceStats begins the names of counters of rules and of the service.
const serviceStats = "ratelimit.service."

// sum adds up the counters whose name begins with prefix.
func sum(counters map[string]int64, prefix string) int64 {
	var n int64
	for name, count := range counters {
		if strings.HasPrefix(name, prefix) {
			n += count
		}
	}
	return n
}

// moved returns by how much counters grew.
func moved(before, after map[string]int64) map[string]int64 {
	grown := make(map[string]int64)
	for name, n := range after {
		if n != before[name] {
			grown[name] = n - before[name]
		}
	}
	return grown
}
