package service

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

const bakery = `
[path=/rye ip=*]
creditLimit = 2
resetSeconds = 3600000
actorField = ip
matchPolicy = canary
label = few
[ip=* path=/rye]
creditLimit = 2
resetSeconds = 3600000
actorField = ip
label = rye
comment = warm until noon
[closed=*]
creditLimit = 0
label = closed
[default]
creditLimit = 5
resetSeconds = 0
`

// launchDivvy starts `ratelimit divvy` with a file of that name and text. Vars are
// NAME=value.
func launchDivvy(t *testing.T, name, text string, vars ...string) *service {
	t.Helper()
	s := &service{t: t, dir: t.TempDir(), signals: make(chan os.Signal, 4), done: make(chan struct{})}
	s.write(name, text)
	environ := append([]string{
		"PORT=0", "DIVVY_HOST=127.0.0.1", "RUNTIME_DEBOUNCE=10ms", "DIVVY_PORT=no number",
		"RUNTIME_ROOT=/nowhere",
	}, vars...)
	s.run(func() (Config, error) { return DivvyConfig(environ, filepath.Join(s.dir, name)) })
	return s
}

// listening says whether divvy's line is printed: the port, then rest.
func (s *service) listening(rest string) func() bool {
	return func() bool {
		_, port, _ := net.SplitHostPort(s.address("divvy"))
		return s.out.String() == "Listening on port TCP port "+port+", "+rest+"\n"
	}
}

// divvyHits is how many HITs of TestDivvyCommand are answered OK.
const divvyHits = 6

// divvyScrape is what a scrape shows after them; a star stands for any number.
var divvyScrape = []string{
	`divvy_errors_total{code="unknown"} 1`, `divvy_errors_total{code="unknown-command"} 1`,
	`divvy_hit_duration_seconds_bucket{le="0.001"} *`, `divvy_hit_duration_seconds_bucket{le="0.002"} *`,
	`divvy_hit_duration_seconds_bucket{le="0.005"} *`,
	`divvy_hit_duration_seconds_bucket{le="0.01"} *`, `divvy_hit_duration_seconds_bucket{le="0.1"} *`,
	`divvy_hit_duration_seconds_bucket{le="0.5"} *`,
	fmt.Sprintf(`divvy_hit_duration_seconds_bucket{le="+Inf"} %d`, divvyHits),
	fmt.Sprintf(`divvy_hit_duration_seconds_count %d`, divvyHits),
	`divvy_hits_total{rule_label="",status="accepted"} 1`, `divvy_hits_total{rule_label="",status="rejected"} 0`,
	`divvy_hits_total{rule_label="closed",status="accepted"} 0`,
	`divvy_hits_total{rule_label="closed",status="rejected"} 1`,
	`divvy_hits_total{rule_label="few",status="canary-accepted"} 3`,
	`divvy_hits_total{rule_label="few",status="canary-rejected"} 1`,
	`divvy_hits_total{rule_label="rye",status="accepted"} 3`, `divvy_hits_total{rule_label="rye",status="rejected"} 1`,
	`divvy_tcp_connections_total *`,
}

// checkDivvyScrape compares a scrape of `ratelimit divvy` with divvyScrape.
func (s *service) checkDivvyScrape() {
	s.t.Helper()
	resp, err := http.Get("http://" + s.address("prometheus") + "/stats/divvy/?x=1")
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it was read
	if err != nil || resp.StatusCode != 200 ||
		!strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		s.t.Errorf("%s, %q, %v", resp.Status, resp.Header.Get("Content-Type"), err)
	}
	var figures []string
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "divvy_hit_duration_seconds_sum") {
			figures = append(figures, line)
		}
	}
	for i := range figures { // durations are not compared
		if i < len(divvyScrape) && strings.HasSuffix(divvyScrape[i], "*") {
			name, _, _ := strings.Cut(figures[i], " ")
			figures[i] = name + " *"
		}
	}
	if got, want := strings.Join(figures, "\n"), strings.Join(divvyScrape, "\n"); got != want {
		s.t.Errorf("scraped\n%s\nwant\n%s", got, want)
	}
}

func TestDivvyCommand(t *testing.T) {
	statsd, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = statsd.Close() }()
	host, port, _ := net.SplitHostPort(statsd.LocalAddr().String())
	s := launchDivvy(t, "bakery.ini", bakery, "DEBUG=express:*,divvy", "HTTP_SERVICE_PORT=0",
		"PROMETHEUS_METRICS_PATH=stats/divvy",
		"STATSD_HOST="+host, "STATSD_PORT="+port, "STATSD_PREFIX=shop", "STATS_FLUSH_INTERVAL=10ms")
	s.until("listening", s.listening("counters in memory"))
	for _, tt := range []struct{ said, want string }{
		{
			"HIT path=/rye ip=1\nHIT ip=1 path=/rye\nHIT path=/rye ip=1\nHIT path=/rye ip=2",
			"OK true 1 3600000\nOK true 0 3600000\nOK false 0 3600000\nOK true 1 3600000\n",
		},
		{"HIT closed=\nHIT\nKNOCK\nHIT", "OK false 0 -1\nOK true 5 0\nERR unknown-command \"Unrecognized command: KNOCK\"\n"},
		{"HIT a", "ERR unknown \"Unexpected end of input string.\"\n"},
	} {
		if got := s.say(tt.said, nil); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.said, got, tt.want)
		}
	}

	s.checkDivvyScrape()
	for path, want := range map[string]int{
		"/stats/divvy": 200, "/healthcheck": 200, "/readyz": 200, "/": 404,
		"/metrics": 404,
	} {
		if code, _ := s.get("prometheus", path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}

	counted := make(map[string]bool)
	for _, line := range []string{
		"shop.hit.accepted:4|c", "shop.hit.rejected:2|c", "shop.hit.canary-accepted:3|c", "shop.hit.canary-rejected:1|c",
		"shop.hit.accepted.rye:3|c", "shop.hit.rejected.rye:1|c",
		"shop.hit.canary-accepted.few:3|c", "shop.hit.canary-rejected.few:1|c", "shop.hit.rejected.closed:1|c",
		"shop.error.unknown:1|c", "shop.error.unknown-command:1|c",
	} {
		counted[line] = true
	}
	received(t, statsd, counted, divvyHits)

	if log := s.log.String(); !strings.Contains(log, "bakery.ini:8:1): warm until noon") ||
		!strings.Contains(log, "divvy 1.7.1 itself differs") {
		t.Errorf("no comment, or no warning in\n%s", log)
	}

	s.write("bakery.ini", "[default]\ncreditLimit = many\n")
	s.until("the new rules are refused", s.logged("the old ones stay in force"))
	if got := s.say("HIT closed=\n", nil); got != "OK false 0 -1\n" {
		t.Errorf("after a bad file: %q", got)
	}
	s.write("bakery.ini", "[default]\ncreditLimit = 0\n")
	s.until("fixed", s.logged("the problems are fixed"))
	s.signals <- syscall.SIGHUP
	s.until("read again", s.logged("rules reloaded: "))
	if got := s.say("HIT\n", nil); got != "OK false 0 -1\n" {
		t.Errorf("after a good file: %q", got)
	}
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// received reads packets of statsd until the sums of all counters of want, the connections
// and that many timings have arrived.
func received(t *testing.T, from net.PacketConn, want map[string]bool, timings int) {
	t.Helper()
	if err := from.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	sums := make(map[string]int)
	connections := false
	line := regexp.MustCompile(`^([^:]+):(\d+)\|(c|g|ms)$`)
	packet := make([]byte, 64<<10)
	for {
		n, _, err := from.ReadFrom(packet)
		if err != nil {
			t.Fatalf("%v; so far %v, and %d timings to come", err, sums, timings)
		}
		for text := range strings.Lines(string(packet[:n])) {
			m := line.FindStringSubmatch(strings.TrimSpace(text))
			switch {
			case m == nil:
				t.Fatalf("no line of statsd: %q", text)
			case m[3] == "c":
				var add int
				if _, err := fmt.Sscan(m[2], &add); err != nil {
					t.Fatal(err)
				}
				sums[m[1]] += add
			case m[1] == "shop.hit" && m[3] == "ms":
				timings--
			case m[1] == "shop.connections" && m[3] == "g":
				connections = true
			default:
				t.Errorf("unknown: %q", text)
			}
		}
		all := connections && timings == 0 && len(sums) == len(want)
		for name, n := range sums {
			all = all && want[fmt.Sprintf("%s:%d|c", name, n)]
		}
		if all {
			return
		}
	}
}

// A refused file opens no port, so no client connects to a service that stops at once.
func TestDivvyReadsRulesFirst(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"a.ini", "[default]\ncreditLimit = many\nresetSeconds = 1\n", "a.ini:2:"},
		{"a.json", "{", "a.json:1:"},
		{"a.yaml", oneRule, "holds no ordered list"},
	} {
		s := launchDivvy(t, tt.name, tt.text, "DEBUG_PORT=0", "DEBUG_HOST=127.0.0.1", "GRPC_PORT=0", "GRPC_HOST=127.0.0.1")
		if err := s.wait(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if log := s.log.String(); strings.Contains(log, "listening") ||
			!strings.Contains(log, "rules refused, none are in force yet") || strings.Count(log, tt.want) != 2 {
			t.Errorf("%s: want no port and each problem once, and at the end, got\n%s", tt.name, log)
		}
	}
	s := launchDivvy(t, "a.ini", bakery)
	s.until("answering", func() bool { return s.say("HIT closed=\n", nil) == "OK false 0 -1\n" })
}

func TestDivvyCommandStatsdOverTCP(t *testing.T) {
	statsd := harness.Listen(t)
	defer func() { _ = statsd.Close() }()
	host, port, _ := net.SplitHostPort(statsd.Addr().String())
	s := launchDivvy(t, "bakery.ini", bakery, "STATSD_HOST="+host, "STATSD_PORT="+port, "STATSD_PREFIX=shop.",
		"STATSD_USE_TCP=1", "STATS_FLUSH_INTERVAL=1h")
	s.until("answering", func() bool { return s.say("HIT closed=\n", nil) == "OK false 0 -1\n" })
	s.signals <- syscall.SIGTERM // the last figures are sent at the end
	if err := statsd.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	conn, err := statsd.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	sent, err := io.ReadAll(conn)
	if err != nil || !regexp.MustCompile(`(?m)^shop\.hit:\d+\|ms$`).Match(sent) ||
		!regexp.MustCompile(`(?m)^shop\.hit\.rejected\.closed:1\|c$`).Match(sent) {
		t.Errorf("%v, got\n%s", err, sent)
	}
	if err := s.wait(); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// rye asks over gRPC about path=/rye and an address.
func (s *service) rye(ip string) pb.RateLimitResponse_Code {
	s.t.Helper()
	conn, err := grpc.NewClient(s.address("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	resp, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(s.t.Context(), &pb.RateLimitRequest{
		Domain: "bakery",
		Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{
			{Key: "path", Value: "/rye"},
			{Key: "ip", Value: ip},
		}}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.GetOverallCode()
}

func TestDivvyCommandOnRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, redistest.Options{})
	host, port, err := net.SplitHostPort(redis.Addr)
	if err != nil {
		t.Fatal(err)
	}
	s := launchDivvy(t, "bakery.ini", bakery, "REDIS_HOST="+host, "REDIS_PORT="+port, "REDIS_TIMEOUT=5s", "GRPC_PORT=0",
		"GRPC_HOST=127.0.0.1", "DEBUG_PORT=0", "DEBUG_HOST=127.0.0.1")
	s.until("listening", s.listening("Redis host "+redis.Addr))
	if got := s.say("HIT path=/rye ip=1\nHIT path=/rye ip=1\nHIT path=/rye ip=1\n",
		nil); got != "OK true 1 3600000\nOK true 0 3600000\nOK false 0 3600000\n" {
		t.Errorf("got %q", got)
	}
	if code := s.rye("1"); code != pb.RateLimitResponse_OVER_LIMIT {
		t.Errorf("over gRPC: %v", code)
	}
	if code, page := s.get("debug", "/rlconfig"); code != 200 || !strings.Contains(page, "bakery.rye:") {
		t.Errorf("/rlconfig: %d %s", code, page)
	}
}

// The port is open before Redis answers, and reports errors.
func TestDivvyCommandWithoutRedis(t *testing.T) {
	t.Parallel()
	s := launchDivvy(t, "bakery.ini", bakery, "REDIS_PORT=1", "REDIS_HOST=127.0.0.1")
	s.until("not ready", s.logged("Redis does not answer"))
	s.until("answering what needs no store", func() bool {
		return s.say("HIT closed=\nHIT\nHIT path=/rye ip=1\n",
			nil) == "OK false 0 -1\nOK true 5 0\nERR unknown \"The store did not answer.\"\n"
	})
	if out := s.out.String(); out != "" {
		t.Errorf("printed %q, though Redis does not answer", out)
	}
}

func TestDivvyCommandRefuses(t *testing.T) {
	for _, tt := range []struct{ name, text, env, want string }{
		{"a.conf", "", "", "a.conf: the name of a file of rules ends in .ini or .json, or in .yaml"},
		{"a.ini", bakery, "PORT=port", "PORT=port: write a port number"},
		{"a.ini", bakery, "REDIS_URL=a:1 REDIS_HOST=b", "REDIS_URL=…: leave it out, or REDIS_HOST and REDIS_PORT"},
	} {
		err := launchDivvy(t, tt.name, tt.text, strings.Fields(tt.env)...).wait()
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s: %v, want %s", tt.name, tt.env, err, tt.want)
		}
	}
	taken := harness.Listen(t)
	defer func() { _ = taken.Close() }()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	if err := launchDivvy(t, "a.ini", bakery, "PORT="+port).wait(); err == nil ||
		!strings.Contains(err.Error(), "is taken: stop what listens there, or set PORT") {
		t.Errorf("a port that is taken: %v", err)
	}
}

// serve opens divvy's port when it loads a rule file of divvy, and uses its rules.
func TestServeOpensDivvyPort(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs addresses of its own, as only Linux has them on loopback")
	}
	pid := os.Getpid()
	host := fmt.Sprintf("127.83.%d.%d", pid>>8&0xFF, pid&0xFF)
	taken, err := net.Listen("tcp", net.JoinHostPort(host, "8321"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	s := launch(t, oneRule, "DIVVY_HOST="+host)
	s.until("ready", s.logged("msg=ready"))
	if log := s.log.String(); strings.Contains(log, "port=divvy") {
		t.Errorf("open without rules of divvy:\n%s", log)
	}
	s.write("bakery.ini", bakery)
	s.until("unhealthy, and says why", func() bool {
		code, why := s.get("debug", "/readyz")
		return code == 503 && strings.Contains(why,
			"the divvy port "+host+":8321 is taken: stop what listens there, or set DIVVY_PORT (`off` does without it)")
	})
	if got := s.ask("1"); got != 200 {
		t.Errorf("what there is besides: %d", got)
	}
	if code, page := s.get("http", "/readyz"); code != 503 || !strings.Contains(page, "divvy") {
		t.Errorf("/readyz: %d %s", code, page)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	s.until("healthy again", s.healthy)
	if got := s.say("HIT path=/rye ip=1\nHIT\n", nil); got != "OK true 1 3600000\nOK true 5 0\n" {
		t.Errorf("got %q", got)
	}
	if _, stats := s.get("debug", "/stats"); !strings.Contains(stats, "ratelimit.divvy.hits: 2\n") {
		t.Errorf("not counted:\n%s", stats)
	}
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		t.Errorf("stopped with %v", err)
	}

	off := launch(t, oneRule, "DIVVY_HOST="+host, "DIVVY_PORT=off")
	off.write("bakery.ini", bakery)
	off.until("ready", off.healthy)
	off.until("the list is loaded",
		func() bool { _, page := off.get("debug", "/rlconfig"); return strings.Contains(page, "bakery.rye") })
	if _, err := net.DialTimeout("tcp", net.JoinHostPort(host, "8321"), time.Second); err == nil {
		t.Error("open though DIVVY_PORT=off")
	}
}
