package service

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"ratelimit/src/operator"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
)

// respSession sends commands over RESP, one after the other.
type respSession struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

// redisClient opens a connection on the port for clients of Redis. Cfg, if not nil, is for TLS.
func (s *service) redisClient(cfg *tls.Config) *respSession {
	s.t.Helper()
	c, err := net.Dial("tcp", s.address("resp"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		s.t.Fatal(err)
	}
	if cfg != nil {
		c = tls.Client(c, cfg)
	}
	return &respSession{s.t, c, bufio.NewReader(c)}
}

// ask sends an inline command on a connection that needs no further password, and returns the reply in one line. Of
// text in several lines it is only the first.
func (r *respSession) ask(command string) string {
	r.t.Helper()
	if _, err := io.WriteString(r.conn, command+"\r\nECHO end\r\n"); err != nil {
		r.t.Fatal(err)
	}
	var lines []string
	for {
		line, err := r.in.ReadString('\n')
		if err != nil {
			return strings.Join(append(lines, err.Error()), " ")
		}
		if line = strings.TrimSpace(line); line == "end" {
			return strings.Join(lines[:len(lines)-1], " ")
		}
		lines = append(lines, line)
	}
}

// Operators need the token, reset counters, and leave a line in the log. Wrong passwords count with those on the debug
// port.
func TestRESPAccess(t *testing.T) {
	t.Parallel()
	s := launch(t, oneRule, "RESP_PORT=0", "RESP_PASSWORD=open", "DEBUG_TOKEN=t0ken")
	s.until("ready", s.healthy)
	c := s.redisClient(nil)
	for _, step := range [][2]string{
		{"AUTH open", "+OK"},
		{"RATELIMIT d ip 1 HITS 2", "*5 :0 :2 :0 :-1 "},
		{"RATELIMIT d ip 1", "*5 :1 :2 :0 "},
		{"RATELIMIT.RESET d ip 1", "-NOPERM RATELIMIT.RESET is for operators: send AUTH with DEBUG_TOKEN first"},
		{"AUTH alice t0ken", "+OK"},
		{"RATELIMIT.RESET d ip 1", ":1"},
		{"RATELIMIT.RESET d other 1", `-ERR no limit of domain "d" applies to other=1; /explain says why`},
		{"RATELIMIT d ip 1 HITS 2", "*5 :0 :2 :0 :-1 "},
		{"RATELIMIT.RESET d ip 1 " + strings.Repeat("a b ", 40), "-ERR descriptor has 41 entries; at most 32 are allowed"},
	} {
		if got := c.ask(step[0]); !strings.HasPrefix(got, step[1]) {
			t.Errorf("%s: got %s, want %s", step[0], got, step[1])
		}
	}
	s.until("an audit line", s.logged(`user=alice`))
	guess := strings.Repeat("AUTH wrong\r\n", 15) + "AUTH open"
	s.until("wrong passwords are too many, also for the debug port", func() bool {
		got := c.ask(guess)
		code, _ := s.change("{}", "Authorization", "Bearer t0ken")
		return strings.Contains(got[strings.LastIndexByte(got, '-'):], "too many wrong passwords came from this address") &&
			code == http.StatusTooManyRequests
	})
}

// Denials over RESP are on the operator's page, also those of CL.THROTTLE.
func TestRESPDenials(t *testing.T) {
	t.Parallel()
	s := launch(t, oneRule, "RESP_PORT=0")
	s.until("ready", s.healthy)
	c := s.redisClient(nil)
	c.ask("RATELIMIT d ip 1 HITS 3")
	c.ask("CL.THROTTLE alice 0 1 60 2")
	var got []string
	for _, d := range api[[]operator.Denial](s, "/api/denials") {
		got = append(got, d.Protocol+" "+d.Domain+" "+d.Rule+" "+d.Subject+" "+d.Counter)
	}
	if want := "resp d d.ip ip=1 d_ip_1_; resp cl.throttle  key=alice cl.throttle:alice"; strings.Join(got, "; ") != want {
		t.Errorf("got %s\nwant %s", strings.Join(got, "; "), want)
	}
}

func TestRESPOverTLS(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	s := launch(t, oneRule, "RESP_PORT=0", "RESP_TLS_CERT="+certs.Server.Cert, "RESP_TLS_KEY="+certs.Server.Key,
		"RESP_TLS_CLIENT_CACERT="+certs.CA)
	s.until("ready", s.healthy)
	withCertificate := certs.ClientConfig(t)
	withCertificate.ServerName = "localhost"
	if got := s.redisClient(withCertificate).ask("PING"); got != "+PONG" {
		t.Errorf("with a certificate: %s", got)
	}
	if got := s.redisClient(nil).ask("PING"); strings.Contains(got, "PONG") {
		t.Errorf("without TLS: %s", got)
	}
}

const treeOfTrades = `schema: {user: {children: {"*": {limits: [15, 30, 60000], children: {trade: {limits: [5, 10, 15000]}}}}}}` + "\n"

// Redis counts CL.THROTTLE and trees without a module, also behind sentinels and in a cluster; Memcached does not.
func TestThrottleInStores(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, redistest.Options{})
	cluster := redistest.StartCluster(t, redistest.ClusterOptions{})
	sentinel := redistest.StartSentinel(t, redistest.SentinelOptions{})
	memcache := memcachedtest.Start(t, memcachedtest.Options{})
	throttled := []exchange{
		{"CL.THROTTLE {a}b 1 1 3600 2", "*5 :0 :2 :0"},
		{"CL.THROTTLE {a}b 1 1 3600", "*5 :1 :2 :0"},
		{"CL.THROTTLE {a}b 3 1 3600", "*5 :0 :4 :1"}, // A larger burst frees some at once.
		{"CL.THROTTLE {a}b 0 1 3600 0", "*5 :1 :1 :0"},
		{"CL.THROTTLE {a}b 3 1 3600 0", "*5 :0 :4 :1"}, // A smaller one has forgotten nothing.
		{"CL.THROTTLE {a}b 3 1 3600 -3", "*5 :0 :4 :4"},
		{"RATELIMIT.TREE rules 6 user alex trade", "*2 *5 :0 :6 :0"},
		{"RATELIMIT.TREE rules 1 user alex trade", "*2 *5 :1 :6 :0"},
		{"RATELIMIT.TREE rules 9 user alex", "*2 *5 :0 :16 :0"}, // Refused trades were charged to the user.
	}
	for _, tt := range []struct {
		rules string
		vars  []string
		talk  []exchange
	}{
		{treeOfTrades, []string{"BACKEND_TYPE=memory"}, throttled},
		{treeOfTrades, []string{"REDIS_URL=" + redis.Addr, "LOCAL_CACHE_SIZE_IN_BYTES=1000000"}, throttled},
		{treeOfTrades, []string{
			"REDIS_TYPE=sentinel",
			"REDIS_URL=" + sentinel.PrimaryName + "," + strings.Join(sentinel.SentinelAddrs, ","),
		}, throttled},
		{treeOfTrades, []string{"REDIS_TYPE=cluster", "REDIS_URL=" + strings.Join(cluster.Addrs, ",")}, throttled},
		{oneRule, []string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + memcache.Addr}, []exchange{
			{"CL.THROTTLE a 1 1 3600", "-ERR CL.THROTTLE needs counters in memory or in Redis; they are in Memcached"},
		}},
	} {
		s := launch(t, tt.rules, append(tt.vars, "RESP_PORT=0", "REDIS_TIMEOUT=10s")...)
		s.until("ready", s.healthy)
		c := s.redisClient(nil)
		for _, e := range tt.talk {
			if got := c.ask(e.command); !strings.HasPrefix(got+" ", e.reply+" ") { // The times that follow depend on the clock.
				t.Errorf("%v: %s: got %s, want %s", tt.vars, e.command, got, e.reply)
			}
		}
	}
}

// exchange is a command, and the start of its reply.
type exchange struct{ command, reply string }

func TestMaxPollers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cores                  int
		storeIsShared, hasRESP bool
		forRESP, forDivvy      int
	}{
		{cores: 8, hasRESP: true, forRESP: 4},
		{cores: 8, forDivvy: 4},
		{cores: 3, hasRESP: true, forRESP: 1},
		{cores: 1, hasRESP: true},
		{cores: 8, storeIsShared: true, hasRESP: true},
	} {
		forRESP, forDivvy := maxPollers(tt.cores, tt.storeIsShared, tt.hasRESP)
		if forRESP != tt.forRESP || forDivvy != tt.forDivvy {
			t.Errorf("%+v: got %d, %d", tt, forRESP, forDivvy)
		}
	}
}
