package service

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

const kitchen = `
domain: kitchen
descriptors:
  - key: ip
    rate_limit: {algorithm: first_hit_window, period: 1000h, requests_per_unit: 2}
  - key: ip
    value: 192.0.2.7
    rate_limit: {unit: second, requests_per_unit: 0}
`

// say sends text to divvy's port, closes the sending side and returns the
// replies.
func (s *service) say(text string, over *tls.Config) string {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.address("divvy"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		s.t.Fatal(err)
	}
	if over != nil {
		over.ServerName = "127.0.0.1"
		conn = tls.Client(conn, over)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		s.t.Fatal(err)
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		s.t.Fatal(err)
	}
	replies, err := io.ReadAll(conn)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(replies)
}

func TestDivvy(t *testing.T) {
	s := launch(t, kitchen, "DIVVY_PORT=0", "DIVVY_DOMAIN=kitchen", "DIVVY_DOMAIN_KEY=domain", "DIVVY_MAX_LINE_BYTES=100",
		"DISABLE_STATS=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")
	s.until("ready", s.healthy)
	for _, tt := range []struct{ said, want string }{
		{
			"HIT ip=1\nHIT ip=1\r\nHIT \"ip\"=\"1\"\nHIT ip=192.0.2.7",
			"OK true 1 3600000\nOK true 0 3600000\nOK false 0 3600000\nOK false 0 -1\n",
		},
		{
			"HIT ip=2 domain=kitchen\nHIT ip=2 domain=cellar\nHIT ip=2\n",
			"OK true 1 3600000\nERR unknown \"No rules are loaded for the domain cellar.\"\n",
		},
		{"GET / HTTP/1.1\r\n\r\n", "ERR unknown-command \"Unrecognized command: GET\"\n"},
		{strings.Repeat("x", 101), "ERR unknown \"Line is longer than 100 bytes.\"\n"},
	} {
		if got := s.say(tt.said, nil); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.said, got, tt.want)
		}
	}
	_, stats := s.get("debug", "/stats")
	for _, want := range []string{
		"ratelimit.divvy.cx_total: 4\n", "ratelimit.divvy.hits: 5\n", "ratelimit.divvy.error.unknown: 2\n",
		"ratelimit.divvy.error.unknown-command: 1\n",
		"ratelimit.service.rate_limit.kitchen.ip.total_hits: 4\n",
	} {
		if !strings.Contains(stats, want) {
			t.Errorf("/stats lacks %s:\n%s", want, stats)
		}
	}
	if _, scraped := s.get("prometheus", "/metrics"); !strings.Contains(scraped,
		`ratelimit_decision_duration_seconds_count{protocol="divvy"} 5`) {
		t.Errorf("no latency in\n%s", scraped)
	}
	idle, err := net.Dial("tcp", s.address("divvy"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close() }()
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		t.Errorf("stopped with %v", err)
	}
	if err := idle.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(idle); err != nil || len(got) > 0 {
		t.Errorf("at the end: %q, %v", got, err)
	}
}

// Pipelined HITs go to Redis in batches and are charged in order. Without Redis they fail,
// except HITs that a rule always denies.
func TestDivvyOnRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, redistest.Options{})
	s := launch(t, strings.Replace(kitchen, "requests_per_unit: 2}", "requests_per_unit: 500}", 1),
		"DIVVY_PORT=0", "DIVVY_DOMAIN=kitchen", "REDIS_TIMEOUT=5s", "REDIS_URL="+redis.Addr)
	s.until("ready", s.healthy)
	var want strings.Builder
	for left := 499; left >= 0; left-- {
		fmt.Fprintf(&want, "OK true %d 3600000\n", left)
	}
	want.WriteString("OK false 0 3600000\n")
	got := s.say(strings.Repeat("HIT ip=1\n", 501), nil)
	got = regexp.MustCompile(` 3599\d{3}\n`).ReplaceAllString(got, " 3600000\n") // Redis may need some milliseconds.
	if got != want.String() {
		t.Errorf("got %s", got)
	}
	redis.Stop()
	if got := s.say("HIT ip=192.0.2.7\nHIT ip=2\nHIT ip=3\n",
		nil); got != "OK false 0 -1\nERR unknown \"The store did not answer.\"\n" {
		t.Errorf("without Redis: %q", got)
	}
}

// DIVVY_KEYS=upstream uses the counters of a live divvy.
func TestDivvyKeysOfUpstream(t *testing.T) {
	redis := redistest.Start(t, redistest.Options{})
	const list = `
domain: kitchen
rules:
- {match: {path: "/p/*", m: GET}, per: [ip], rate_limit: {algorithm: first_hit_window, period: 3600s, requests_per_unit: 5}}
- {match: {}, rate_limit: {unit: second, requests_per_unit: 0}}
`
	s := launch(t, list, "DIVVY_PORT=0", "DIVVY_DOMAIN=kitchen", "DIVVY_KEYS=upstream", "REDIS_TIMEOUT=5s",
		"REDIS_URL="+redis.Addr)
	s.until("ready", s.healthy)
	redis.Do(t, "SET", "divvy:m=GET path=/p/*:9:5:3600", "2", "EX", "1800")
	got := s.say("HIT m=GET path=/p/a ip=9\nHIT m=GET path=/p/b ip=9\nHIT m=GET path=/p/a ip=9\nHIT m=PUT\n", nil)
	if want := `^OK true 1 (1800|179\d)\nOK true 0 (1800|179\d)\nOK false 0 (1800|179\d)\nOK false 0 -1\n$`; !regexp.MustCompile(want).MatchString(got) {
		t.Errorf("got %q, want %s", got, want)
	}
	if got := redis.Do(t, "GET", "divvy:m=GET path=/p/*:9:5:3600"); got != "0" {
		t.Errorf("%v is left in Redis", got)
	}
}

func TestDivvyOverTLS(t *testing.T) {
	t.Parallel()
	files := harness.NewCertificates(t)
	on := []string{"DIVVY_PORT=0", "DIVVY_DOMAIN=kitchen", "DIVVY_ROUND=up"}
	s := launch(t, kitchen, append(on, "DIVVY_TLS_CERT="+files.Server.Cert, "DIVVY_TLS_KEY="+files.Server.Key)...)
	s.until("ready", s.healthy)
	if got := s.say("HIT ip=1\n", files.ClientConfig(t)); got != "OK true 1 3600000\n" {
		t.Errorf("got %q", got)
	}
	err := launch(t, kitchen, append(on, "DIVVY_TLS_CERT="+files.CA, "DIVVY_TLS_KEY=/no/such/file")...).wait()
	if err == nil || !strings.Contains(err.Error(), "DIVVY_TLS_CERT: certs: the key: open /no/such/file") {
		t.Errorf("a key that is missing: %v", err)
	}
}
