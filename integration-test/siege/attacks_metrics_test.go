//go:build linux

package siege

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Attacks by names that callers choose, and on the debug port.
var metricAttacks = []attack{
	{
		letter: "K", name: "forged tags of statsd",
		does:  "values and domains that look like tags of statsd (`.__admin=true`) and get into names of metrics",
		rules: taggedRules, quiet: true, prepare: toStatsd("USE_STATSD=true", "STATSD_PROTOCOL=udp"), strike: forgedTags,
	},
	{
		letter: "K", name: "forged tags of DogStatsD", does: "the same with `USE_DOG_STATSD`",
		rules: taggedRules, quiet: true, prepare: toStatsd("USE_DOG_STATSD=true"), strike: forgedTags,
	},
	{
		letter: "K", name: "unknown domains",
		does:      "calls for 30,000 domains without rules; the size of a scrape is compared",
		unhurried: true, strike: unknownDomains,
	},
	{
		letter: "K", name: "the debug port",
		does:  "it listens on all interfaces without a token, and is asked with the Host of another site",
		quiet: true, prepare: func(_ *trial, o *options) { o.env = append(o.env, "DEBUG_HOST=0.0.0.0") }, strike: debugPort,
	},
}

const taggedRules = "- {key: tagged, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 1000}}\n"

// lines collects what arrives at a UDP port.
type lines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// toStatsd has statistics sent to the test.
func toStatsd(env ...string) func(x *trial, o *options) {
	return func(x *trial, o *options) {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			x.Fatal(err)
		}
		x.Cleanup(func() { _ = conn.Close() })
		got := &lines{}
		x.state = got
		go func() {
			packet := make([]byte, 64<<10)
			for {
				n, _, err := conn.ReadFrom(packet)
				if err != nil {
					return
				}
				got.mu.Lock()
				if got.text.Len() < 8<<20 {
					got.text.Write(packet[:n])
					got.text.WriteByte('\n')
				}
				got.mu.Unlock()
			}
		}()
		_, port, err := net.SplitHostPort(conn.LocalAddr().String())
		if err != nil {
			x.Fatal(err)
		}
		o.env = append(append(o.env, env...), "USE_PROMETHEUS=false", "STATSD_HOST=127.0.0.1", "STATSD_PORT="+port,
			"STATS_FLUSH_INTERVAL=200ms")
	}
}

func forgedTags(x *trial) {
	for _, mark := range []string{".__admin=true", "|#admin:true", "\nadmin.forged:1|c"} {
		for _, ask := range [][3]string{{"siege", "tagged", "v" + mark}, {"unknown" + mark, "a", "b"}} {
			if _, err := x.ask(ask[0], ask[1], ask[2]); err != nil {
				x.complain("%q: %v", ask, err)
			}
		}
	}
	time.Sleep(pick(x, time.Second, 3*time.Second))
	text := x.state.(*lines).String()
	if !strings.Contains(text, "tagged") {
		x.complain("no statistics came: %.200q", text)
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, ".__admin=") || strings.Contains(line, "admin:true") ||
			strings.HasPrefix(line, "admin.forged") {
			x.complain("a caller's value forged a tag or a line: %.200q", line)
			return
		}
	}
}

func unknownDomains(x *trial) {
	n := pick(x, 5000, 30_000)
	before, err := x.service.get("http://" + x.service.prometheus + "/metrics")
	if err != nil {
		x.complain("%v", err)
	}
	list := x.wires(4, true)
	defer hangUp(list)
	together(list, func(i int, w *wire) {
		each := n / len(list)
		if _, err := w.flood(each, 50, func(k int) []byte {
			return question(fmt.Sprintf("unknown-domain-%d", i*each+k), descriptor("a", "b"))
		}); err != nil {
			x.complain("%v", err)
		}
	})
	begun := time.Now()
	after, err := x.service.get("http://" + x.service.prometheus + "/metrics")
	if err != nil {
		x.complain("%v", err)
	}
	more := len(after) - len(before)
	x.note("a scrape has %d KiB more than the %d before, and took %v", more>>10, len(before)>>10,
		time.Since(begun).Round(time.Millisecond))
	if more > 64<<10 {
		x.complain("%d unknown domains make a scrape %d KiB larger, want at most 64", n, more>>10)
	}
}

func debugPort(x *trial) {
	warnings := 0
	for _, line := range x.service.lines() {
		if strings.Contains(line, "warn") && strings.Contains(line, "DEBUG_TOKEN") {
			warnings++
		}
	}
	if warnings != 1 {
		x.complain("the log warns %d times that the debug port is open to all, want once", warnings)
	}
	for host, want := range map[string]bool{
		"rebound.attacker.example": false, "rebound.attacker.example:6070": false,
		"127.0.0.1": true, "[::1]:6070": true,
	} {
		for _, path := range []string{"/stats", "/rlconfig", "/debug/pprof/", "/"} {
			r, err := http.NewRequestWithContext(x.ctx, http.MethodGet, "http://"+x.service.debug+path, nil)
			if err != nil {
				x.Fatal(err)
			}
			r.Host = host
			resp, err := x.service.client.Do(r)
			if err != nil {
				x.complain("Host %s: %v", host, err)
				continue
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if (resp.StatusCode == http.StatusOK) != want {
				x.complain("%s with Host %s is answered %s", path, host, resp.Status)
			}
		}
	}
}
