package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"ratelimit/testbed/harness"
)

// steadyLoad is a client that asks at an even pace, until it is stopped, whatever
// becomes of the servers.
type steadyLoad struct {
	calls, failures atomic.Int64
	first           atomic.Pointer[error] // of the failures
	stop            context.CancelFunc
	callers         sync.WaitGroup

	mu   sync.Mutex
	took []time.Duration
}

// load makes so many calls a second, over all addresses in turn.
func load(t *testing.T, perSecond int, addrs ...string) *steadyLoad {
	t.Helper()
	names := manual.NewBuilderWithScheme("replicas")
	var state resolver.State
	for _, addr := range addrs {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: addr})
	}
	names.InitialState(state)
	conn, err := grpc.NewClient("replicas:///", grpc.WithResolvers(names),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
			BaseDelay: 20 * time.Millisecond, Multiplier: 1,
			MaxDelay: 20 * time.Millisecond,
		}, MinConnectTimeout: time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	tr := &steadyLoad{stop: stop}
	t.Cleanup(func() {
		tr.end()
		_ = conn.Close()
	})
	requests := make([]*rlsv3.RateLimitRequest, 100)
	for i := range requests {
		if requests[i], err = newRequest("d", fmt.Sprintf("user=%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	stub := rlsv3.NewRateLimitServiceClient(conn)
	one := func(n int) {
		ctx, cancel := context.WithTimeout(context.Background(), patience) // not ctx: what has begun ends
		defer cancel()
		begun := time.Now()
		_, err := stub.ShouldRateLimit(ctx, requests[n%len(requests)])
		took := time.Since(begun)
		tr.calls.Add(1)
		if err != nil {
			tr.failures.Add(1)
			tr.first.CompareAndSwap(nil, &err)
		}
		tr.mu.Lock()
		tr.took = append(tr.took, took)
		tr.mu.Unlock()
	}
	if _, err := stub.ShouldRateLimit(ctx, requests[0], grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	// So many at a time, so that a machine that is too slow gets fewer calls, not a
	// queue.
	const callers = 64
	for c := range callers {
		tr.callers.Go(func() {
			begun := time.Now()
			for n := c; ctx.Err() == nil; n += callers {
				one(n)
				time.Sleep(time.Until(begun.Add(time.Duration(n) * time.Second / time.Duration(perSecond))))
			}
		})
	}
	return tr
}

// end stops and waits for what is under way.
func (tr *steadyLoad) end() {
	tr.stop()
	tr.callers.Wait()
}

// report fails the test if a call did.
func (tr *steadyLoad) report(t *testing.T) {
	t.Helper()
	tr.end()
	if n := tr.failures.Load(); n > 0 {
		t.Errorf("%d of %d calls failed, the first with %v", n, tr.calls.Load(), *tr.first.Load())
	}
	slices.Sort(tr.took)
	at := func(share float64) time.Duration { return tr.took[int(share*float64(len(tr.took)-1))] }
	t.Logf("%d calls, half within %v, 99 %% within %v, all within %v", len(tr.took), at(0.5), at(0.99), at(1))
}

// requests is how many calls the service has answered.
func (s *service) requests(t *testing.T) int {
	t.Helper()
	return s.stat(t, "ratelimit_server.ShouldRateLimit.total_requests")
}

func (s *service) stat(t *testing.T, name string) int {
	t.Helper()
	text, err := get("http://" + s.debug + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `: (\d+)$`).FindStringSubmatch(string(text))
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// freePort returns a free port, on which a service can be restarted.
func freePort(t *testing.T) string {
	t.Helper()
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

// Two replicas are replaced one after the other, twice, while 2,000 calls a
// second come in. None is lost.
func TestRollingRestart(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) { testRollingRestart(t, "GRPC_ENGINE="+engine) })
	}
}

func testRollingRestart(t *testing.T, engine string) {
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors: [{key: user, rate_limit: {unit: second, requests_per_unit: 10}}]")
	ports := []string{freePort(t), freePort(t)}
	run := func(i int) *service {
		return startService(t, append(rules.env(), engine, "GRPC_PORT="+ports[i], "SHUTDOWN_DRAIN=500ms",
			"DISABLE_STATS=true")...)
	}
	replicas := []*service{run(0), run(1)}
	tr := load(t, 2000, replicas[0].grpc, replicas[1].grpc)
	for n := range 4 {
		replicas[n%2].stop(t)
		s := run(n % 2)
		replicas[n%2] = s
		s.until(t, "it has its share of the calls again", func() error {
			if s.requests(t) < 500 {
				return fmt.Errorf("%d so far", s.requests(t))
			}
			return nil
		})
	}
	tr.report(t)
}

// The rules change 50 times while calls come in. No call fails, and none waits
// for a load.
func TestReloadUnderLoad(t *testing.T) {
	rules := newRuleDir(t)
	put := func(n int) {
		var b strings.Builder
		b.WriteString("domain: d\ndescriptors:\n")
		for i := range 2000 {
			fmt.Fprintf(&b, "- {key: user, value: \"%d\", rate_limit: {unit: second, requests_per_unit: %d}}\n", i, n+1)
		}
		rules.put(t, "d.yaml", b.String())
	}
	put(0)
	s := startService(t, append(rules.env(), "RUNTIME_DEBOUNCE=10ms")...)
	tr := load(t, 1000, s.grpc)
	for n := range 50 {
		put(n + 1)
		want := fmt.Sprintf("d.user_7: unit=SECOND requests_per_unit=%d", n+2)
		s.until(t, want, func() error {
			page, err := get("http://" + s.debug + "/rlconfig")
			if err == nil && !strings.Contains(string(page), want+",") && !strings.Contains(string(page), want+"\n") {
				err = fmt.Errorf("it is not in force yet")
			}
			return err
		})
	}
	tr.report(t)
}

// Idle connections cost little, and nothing after they are closed.
func TestIdleConnections(t *testing.T) {
	const connections = 10_000
	if err := harness.RaiseFileLimit(connections + 1000); err != nil {
		t.Skip(err)
	}
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors: [{key: user}]")
	// Ports share the file descriptors, so the others get few of them.
	s := startService(t, append(rules.env(), "GRPC_MAX_CONNECTIONS=12000", "HTTP_MAX_CONNECTIONS=1000",
		"DIVVY_MAX_CONNECTIONS=1000")...)
	before := residentBytes(t, s.PID())
	conns := make([]net.Conn, 0, connections)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range connections {
		c, err := net.Dial("tcp", s.grpc)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		if err := http2.NewFramer(c, nil).WriteSettings(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns { // each is greeted, so each is served
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 64)); err != nil {
			t.Fatal(err)
		}
	}
	with := residentBytes(t, s.PID())
	each := (with - before) / connections
	t.Logf("%d MB before, %d MB with %d idle connections: %d KB each", before>>20, with>>20, connections, each>>10)
	if each > 16<<10 {
		t.Errorf("an idle connection takes %d KB", each>>10)
	}
	if status, answer := s.ask(t, "d", "user=1"); status != 200 {
		t.Errorf("%d %v", status, answer)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	s.until(t, "all goroutines of the connections have ended", func() error {
		if n := s.stat(t, "ratelimit.go.numGoroutine"); n > 200 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
}

// residentBytes returns the resident memory of a process.
func residentBytes(tb testing.TB, pid int) int {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Skip("the memory of a process is read from /proc: ", err)
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		tb.Fatalf("no VmRSS in %s", text)
	}
	kB, err := strconv.Atoi(string(m[1]))
	if err != nil {
		tb.Fatal(err)
	}
	return kB << 10
}
