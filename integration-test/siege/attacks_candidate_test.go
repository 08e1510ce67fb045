//go:build linux

package siege

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ratelimit/testbed/harness"
)

// Attacks on recordings and on candidate rules.
var candidateAttacks = []attack{
	{
		letter: "D", name: "recordings that are not read",
		does:  "200 requests for `/api/record` that read nothing; the service takes 4",
		rules: floodRules, env: []string{"MEMORY_MAX_BYTES=33554432"}, strike: unreadRecordings, kept: 64 << 20,
	},
	{
		letter: "F", name: "keys without end under candidate rules",
		does:  "2 million unique keys, while candidate rules want three more counters for each",
		rules: floodRules, env: []string{"RUNTIME_CANDIDATE_SUBDIRECTORY=next", "MEMORY_MAX_BYTES=33554432"},
		strike: keysUnderCandidate, kept: 64 << 20,
		unhurried: true,
	},
}

// unreadRecordings asks for recordings over sockets that are not read.
func unreadRecordings(x *trial) {
	list := fillPort(x.service.debug, pick(x, 20, 120)) // The port has room for them, so none is closed for another.
	for _, c := range list {
		if tcp, is := c.(*net.TCPConn); is {
			_ = tcp.SetReadBuffer(4 << 10)
		}
		if _, err := fmt.Fprintf(c, "GET /api/record?for=1m HTTP/1.1\r\nHost: %s\r\n\r\n", x.service.debug); err != nil {
			x.complain("asking for a recording: %v", err)
		}
	}
	x.awaitSample()
	url := "http://" + x.service.debug + "/api/record?for=1s"
	if text, err := x.service.get(url); err == nil || !strings.Contains(err.Error(), "429 Too Many Requests") {
		x.complain("one recording more: got %.100q, %v, want a refusal", text, err)
	}
	x.floodKeys(pick(x, 200_000, 500_000), nil)
	leave(list)
	var text string
	if err := harness.Retry(10*time.Second, func() (err error) {
		text, err = x.service.get(url)
		return err
	}); err != nil {
		x.complain("a recording after those have gone: %v", err)
	}
	if !strings.Contains(text, `"neighbour"`) {
		x.complain("the recording has no calls of the neighbour: %.200q", text)
	}
}

// keysUnderCandidate charges new keys, each of which needs three counters of the candidate rules.
func keysUnderCandidate(x *trial) {
	dir := filepath.Join(x.service.dir, "next", filepath.Base(x.service.config))
	limits := make([]string, 3)
	for i := range limits {
		limits[i] = fmt.Sprintf(
			"{unit: day, unit_multiplier: %d, requests_per_unit: 1000, algorithm: sliding_window_counter}", i+1)
	}
	text := baseRules + "- {key: flood, rate_limits: [" + strings.Join(limits, ", ") + "]}\n"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		x.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "siege.yaml"), []byte(text), 0o644); err != nil {
		x.Fatal(err)
	}
	url := "http://" + x.service.debug + "/candidate"
	if err := harness.Retry(10*time.Second, func() error {
		page, err := x.service.get(url)
		if err == nil && !strings.Contains(page, "4 rules in 1 domain") {
			err = fmt.Errorf("%.200s", page)
		}
		return err
	}); err != nil {
		x.complain("the candidate rules are not judged: %v", err)
		return
	}
	share := 1.0
	for range 10 { // until the sample, which is adjusted each second, has shrunk
		x.floodKeys(pick(x, 400_000, 2_000_000), nil)
		var err error
		if share, err = x.service.metric("ratelimit_candidate_sampled_ratio"); err != nil {
			x.complain("%v", err)
			return
		}
		if share < 1 {
			break
		}
	}
	x.note("%.2g of the counters of candidate rules were judged at the end", share)
	if share == 1 {
		x.complain("all counters are judged, whatever that costs")
	}
	if page, err := x.service.get(url); err != nil ||
		!strings.Contains(page, "requests were not compared, to bound the cost") {
		x.complain("/candidate: %.500s, %v", page, err)
	}
}
