package soak

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// TestMain lets all stores run at the same time, whatever the machine has: services that are not asked for all they can
// give have room beside each other.
func TestMain(m *testing.M) {
	harness.RunTests(m, func() error { return flag.Set("test.parallel", "3") })
}

// service is a running service.
type service struct{ *harness.Service }

// startService starts the service with these variables and no others, and waits
// until it is ready. It is stopped at the end of the test.
func startService(t *testing.T, env ...string) *service {
	t.Helper()
	s := &service{harness.NewService(t, append([]string{
		"DIVVY_HOST=127.0.0.1", "DIVVY_PORT=0", "DIVVY_DOMAIN=soak", "RESP_HOST=127.0.0.1", "RESP_PORT=0",
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", "STATS_MAX_SERIES=500",
	}, env...)...)}
	if err := writeRules(s.Rules, 0); err != nil {
		t.Fatal(err)
	}
	s.Start(t)
	return s
}

// web reads pages. Connections are not kept, so that they are not counted.
var web = &http.Client{Timeout: harness.Deadline, Transport: &http.Transport{DisableKeepAlives: true}}

func page(url string) (string, error) {
	resp, err := web.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return string(text), err
}

// stats reads the figures of the debug port.
func (s *service) stats() (map[string]float64, error) {
	text, err := page("http://" + s.Addrs["debug"] + "/stats")
	if err != nil {
		return nil, err
	}
	stats := make(map[string]float64)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if stats[name], err = strconv.ParseFloat(value, 64); err != nil {
			return nil, err
		}
	}
	return stats, nil
}

// sample reads the figures, in the order of figures.
func (s *service) sample() ([]float64, error) {
	// A collection first: what is counted then is alive.
	profile, err := page("http://" + s.Addrs["debug"] + "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return nil, err
	}
	heap, err := number(profile, `(?m)^# HeapAlloc = (\d+)$`)
	if err != nil {
		return nil, err
	}
	stats, err := s.stats()
	if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.PID()))
	if err != nil {
		return nil, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	if err != nil {
		return nil, err
	}
	kilobytes, err := number(string(status), `(?m)^VmRSS:\s+(\d+) kB$`)
	return []float64{heap, stats["ratelimit.go.numGoroutine"], float64(len(files)), kilobytes * 1024}, err
}

// number finds a number in a text.
func number(text, pattern string) (float64, error) {
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("no %s in %.100q", pattern, text)
	}
	return strconv.ParseFloat(m[1], 64)
}

// rest waits until goroutines and descriptors are at most these, or says how many
// there are.
func (s *service) rest(goroutines, descriptors float64) error {
	return harness.Retry(90*time.Second, func() error {
		now, err := s.sample()
		if err == nil && (now[1] > goroutines || now[2] > descriptors) {
			err = fmt.Errorf("%v goroutines and %v descriptors, want at most %v and %v", now[1], now[2], goroutines, descriptors)
		}
		return err
	})
}
