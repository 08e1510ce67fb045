package service

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/sirupsen/logrus"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"ratelimit/src/service/ports"
)

// A full port closes the longest idle connection for a new one.
func TestConnectionsAreBounded(t *testing.T) {
	s := launch(t, oneRule, "HTTP_MAX_CONNECTIONS=3", "GRPC_MAX_CONNECTIONS=2")
	s.until("ready", s.healthy)
	http.DefaultClient.CloseIdleConnections()
	s.until("all connections of before have ended", func() bool { return s.figure("ratelimit.http.cx_active") == 0 })
	for port, most := range map[string]int{"http": 3, "grpc": 2} {
		var open []net.Conn
		for range most {
			open = append(open, s.dial(port))
		}
		s.until("they are accepted", func() bool { return s.figure("ratelimit."+port+".cx_active") == int64(most) })
		next := s.dial(port)
		if _, err := io.Copy(io.Discard, open[0]); err != nil {
			t.Errorf("%s: the longest idle connection ends with %v, want it closed", port, err)
		}
		for what, want := range map[string]int64{"evicted": 1, "refused": 0, "active": int64(most)} {
			if n := s.figure("ratelimit." + port + ".cx_" + what); n != want {
				t.Errorf("%s: cx_%s is %d, want %d", port, what, n, want)
			}
		}
		if port == "http" {
			if got := probe(next, "/livez"); got != 200 {
				t.Errorf("the newcomer gets %d", got)
			}
		}
	}
}

// probe asks for path on conn and returns the status, 0 without an answer.
func probe(conn net.Conn, path string) (status int) {
	_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path) // else there is no answer
	_, _ = fmt.Fscanf(conn, "HTTP/1.1 %d", &status)
	return status
}

// Probes are answered while the port is full of silent connections and of unfinished
// bodies. The health port answers them as well, and answers nothing else.
func TestProbesOnAFullPort(t *testing.T) {
	for name, hello := range map[string]string{
		"idle":            "",
		"unfinished head": "GET /livez HTTP/1.1\r\nX: ",
		"unfinished body": "POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat(" ", 10_000),
		"answered":        "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := launch(t, oneRule, "HTTP_MAX_CONNECTIONS=50", "HEALTH_PORT=0", "HEALTH_HOST=127.0.0.1")
			s.until("ready", s.healthy)
			for range 60 {
				if _, err := io.WriteString(s.dial("http"), hello); err != nil {
					t.Error(err)
				}
			}
			s.until("the port is full", func() bool {
				return s.figure("ratelimit.http.cx_active") == 50 && s.figure("ratelimit.http.cx_evicted") >= 10
			})
			for path, want := range map[string]int{
				"/livez": 200, "/readyz": 200, "/healthcheck": 200, "/json": 404,
				"/stats": 404,
			} {
				if want == 200 {
					if got := probe(s.dial("http"), path); got != want {
						t.Errorf("%s on the full port: %d, want %d", path, got, want)
					}
				}
				if got := probe(s.dial("health"), path); got != want {
					t.Errorf("%s on the health port: %d, want %d", path, got, want)
				}
			}
			if n := s.figure("ratelimit.http.cx_refused"); n != 0 {
				t.Errorf("%d newcomers are refused, want none", n)
			}
		})
	}
}

// Unfinished bodies count in the budget; the largest are closed first.
func TestBodiesCountInTheBudget(t *testing.T) {
	s := launch(t, oneRule, "MAX_BUFFERED_BYTES=4194304")
	s.until("ready", s.healthy)
	small := s.dial("http")
	const body = `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"1"}]}]}`
	if _, err := fmt.Fprintf(small, "POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body),
		body[:20]); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		// it may be closed meanwhile
		_, _ = fmt.Fprintf(s.dial("http"), "POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n%s",
			strings.Repeat(" ", 900_000))
		// A read is counted when its bytes are in memory already. Refusing to count them would hide
		// them, so the sum is above the bound until the largest connection is closed.
		s.until("4 MiB or less are held", func() bool { return s.figure("ratelimit.buffered.bytes") <= 4<<20 })
	}
	s.until("bodies are too much", func() bool { return s.figure("ratelimit.http.cx_over_budget") > 0 })
	var status int
	_, _ = io.WriteString(small, body[20:]) // else there is no answer
	if _, err := fmt.Fscanf(small, "HTTP/1.1 %d", &status); err != nil || status != 200 {
		t.Errorf("a small request gets %d, %v", status, err)
	}
	_ = small.Close()
	s.until("what was held is free again", func() bool {
		return s.figure("ratelimit.buffered.bytes") < 100_000 || s.figure("ratelimit.http.cx_active") > 1
	})
}

// The log warns once of a debug port without a token that other hosts reach; a request for
// another host name is refused.
func TestDebugPortIsOpen(t *testing.T) {
	const warning = "shows rules, counters and profiles without a token"
	for _, tt := range []struct {
		vars []string
		want int
	}{
		{[]string{"DEBUG_HOST="}, 1},
		{[]string{"DEBUG_HOST=127.0.0.1"}, 0},
		{[]string{"DEBUG_HOST=", "DEBUG_TOKEN=secret"}, 0},
	} {
		s := launch(t, oneRule, tt.vars...)
		s.until("ready", s.healthy)
		if n := strings.Count(s.log.String(), warning); n != tt.want {
			t.Errorf("%v: warned %d times, want %d:\n%s", tt.vars, n, tt.want, s.log.String())
		}
	}
	s := launch(t, oneRule, "DEBUG_ALLOWED_HOSTS=Debug.Example")
	for host, want := range map[string]int{"debug.example": 200, "localhost": 200, "other.example": 403} {
		conn := s.dial("debug")
		var status int
		_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host) // else there is no answer
		if _, err := fmt.Fscanf(conn, "HTTP/1.1 %d", &status); err != nil || status != want {
			t.Errorf("host %s: %d, %v, want %d", host, status, err, want)
		}
	}
}

// The log warns once of a RESP port without a password that other hosts reach.
func TestRESPPortIsOpen(t *testing.T) {
	const warning = "takes commands without a password from all that reach it: set RESP_PASSWORD, or RESP_HOST=127.0.0.1"
	for _, tt := range []struct {
		vars []string
		want int
	}{
		{[]string{"RESP_PORT=0", "RESP_HOST="}, 1},
		{[]string{"RESP_PORT=0", "RESP_HOST=127.0.0.1"}, 0},
		{[]string{"RESP_PORT=0", "RESP_HOST=", "RESP_PASSWORD=secret"}, 0},
		{[]string{"RESP_HOST="}, 0},
	} {
		s := launch(t, oneRule, tt.vars...)
		s.until("ready", s.healthy)
		if n := strings.Count(s.log.String(), warning); n != tt.want {
			t.Errorf("%v: warned %d times, want %d:\n%s", tt.vars, n, tt.want, s.log.String())
		}
	}
}

// dial connects to a port until the test ends.
func (s *service) dial(port string) net.Conn {
	s.t.Helper()
	conn, err := net.DialTimeout("tcp", s.address(port), 10*time.Second)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		s.t.Fatal(err)
	}
	return conn
}

// figure returns a value of /stats.
func (s *service) figure(name string) int64 {
	s.t.Helper()
	_, text := s.get("debug", "/stats")
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `: (\d+)$`).FindStringSubmatch(text)
	if m == nil {
		s.t.Fatalf("%s is not in\n%s", name, text)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// A flood of HTTP/2 connections that send nothing costs other callers no call: neither
// those that were connected before, nor new ones.
func TestNeighbourInAFlood(t *testing.T) { eachEngine(t, testNeighbourInAFlood) }

func testNeighbourInAFlood(t *testing.T, engine string) {
	s := launch(t, oneRule, engine, "GRPC_MAX_CONNECTIONS=50")
	s.until("ready", s.healthy)
	neighbour := func() pb.RateLimitServiceClient {
		conn, err := grpc.NewClient(s.address("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return pb.NewRateLimitServiceClient(conn)
	}
	req := &pb.RateLimitRequest{
		Domain:      "d",
		Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "ip", Value: "1"}}}},
	}
	call := func(c pb.RateLimitServiceClient) {
		t.Helper()
		if _, err := c.ShouldRateLimit(t.Context(), req); err != nil {
			t.Errorf("a call fails: %v", err)
		}
	}
	before := neighbour()
	for range 5 {
		call(before)
	}
	for i := range 300 {
		if _, err := io.WriteString(s.dial("grpc"),
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Error(err)
		}
		if i%10 == 0 {
			call(before)
		}
	}
	s.until("the flood makes room for itself", func() bool { return s.figure("ratelimit.grpc.cx_evicted") >= 251 })
	call(before)
	call(neighbour())
	if n := s.figure("ratelimit.grpc.cx_refused"); n != 0 {
		t.Errorf("%d newcomers are refused, want none", n)
	}
}

// Lowered caps are a warning if settings asked for more, or if few connections are left.
func TestLoweredCapsAreLogged(t *testing.T) {
	for _, tt := range []struct {
		set  bool
		most int
		want string
	}{
		{false, 5000, "level=info"},
		{true, 5000, "level=warning"},
		{false, 50, "level=warning"},
	} {
		var out buffer
		log := logrus.New()
		log.SetOutput(&out)
		most := &ports.Port{MaxConns: tt.most}
		logLoweredCaps(&portSet{HTTP: most, GRPC: most, Divvy: new(ports.Port), RESP: new(ports.Port)}, log, tt.set,
			"lowered")
		if !strings.Contains(out.String(), tt.want) {
			t.Errorf("%+v: %s, want %s", tt, out.String(), tt.want)
		}
	}
}

// Figures show unfinished requests, and the connections closed because of them.
func TestBufferedFigures(t *testing.T) {
	s := launch(t, oneRule, "MAX_BUFFERED_BYTES=1048576", "DISABLE_STATS=false", "USE_PROMETHEUS=true",
		"PROMETHEUS_ADDR=127.0.0.1:0")
	s.until("ready", s.healthy)
	f := s.dialFrames()
	open := func(id uint32) error { // :method POST: an incomplete request
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x83}, EndHeaders: false})
	}
	if err := open(1); err != nil {
		t.Fatal(err)
	}
	s.until("the stream is charged", func() bool { return s.figure("ratelimit.buffered.bytes") > 0 })
	for _, name := range []string{
		"ratelimit.buffered.evicted", "ratelimit.grpc.cx_stalled", "ratelimit.grpc.cx_slowed",
		"ratelimit.grpc.streams_refused",
	} {
		if n := s.figure(name); n != 0 {
			t.Errorf("%s is %d", name, n)
		}
	}
	_, text := s.get("prometheus", "/metrics")
	for _, name := range []string{
		"ratelimit_buffered_bytes", "ratelimit_buffered_max_bytes 1.048576e+06", "ratelimit_buffered_evicted_total 0",
		"ratelimit_grpc_stalled_connections_total 0", "ratelimit_grpc_slowed_reads_total 0",
		"ratelimit_grpc_refused_streams_total 0",
	} {
		if !strings.Contains(text, "\n"+name) {
			t.Errorf("%s is not in\n%s", name, text)
		}
	}
}
