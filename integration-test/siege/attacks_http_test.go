//go:build linux

package siege

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/testbed/harness"
)

// Attacks on the HTTP port and on file descriptors.
var httpAttacks = []attack{
	{
		letter: "E", name: "probes on a full port",
		does: "idle connections up to `HTTP_MAX_CONNECTIONS` while probes come, on the HTTP port and on " +
			"`HEALTH_PORT`",
		quiet: true, prepare: func(x *trial, o *options) {
			if !x.full {
				o.env = append(o.env, "HTTP_MAX_CONNECTIONS=200")
			}
		}, strike: httpCrowd,
	},
	{
		letter: "E", name: "unfinished bodies",
		does:   "1,200 times `POST /json` with a body of 1 MiB that lacks its last byte",
		strike: unfinishedBodies,
	},
	{
		letter: "D", name: "replies of /json that are not read",
		does:  "pipelined `POST /json` with 100 descriptors over 1,500 connections that read nothing",
		rules: unreadRules, strike: unreadJSON,
	},
	{
		letter: "B", name: "large calls of /json",
		does:  "`POST /json` with bodies of 1 MiB, 1,000 descriptors and 16,000 entries over 64 connections",
		rules: "- {key: greedy, rate_limit: {unit: hour, requests_per_unit: 1000000000}}\n", strike: largeJSON,
	},
	{
		letter: "E", name: "no file descriptors left",
		does: "`ulimit -n 256`, used up by idle connections; then the store's connections are reset, the rules " +
			"change and probes come",
		store: redis, quiet: true, tolerant: true, strike: noFiles,
		prepare: func(x *trial, o *options) {
			o.files = 256
			throughProxy(x, o)
		},
	},
}

// fillPort opens idle connections to an address until one is refused or there are n.
func fillPort(addr string, n int) (list []net.Conn) {
	for range n {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return list
		}
		list = append(list, c)
	}
	return list
}

func leave(list []net.Conn) {
	for _, c := range list {
		_ = c.Close()
	}
}

// probe asks as a kubelet does, each time over a new connection.
func (x *trial) probe(times int, addresses ...string) {
	failed := 0
	client := http.Client{Timeout: x.deadline, Transport: &http.Transport{DisableKeepAlives: true}}
	for range times {
		for _, addr := range addresses {
			for _, path := range []string{"/livez", "/readyz", "/healthcheck"} {
				resp, err := client.Get("http://" + addr + path)
				if err == nil {
					_ = resp.Body.Close()
				}
				if err != nil || resp.StatusCode != http.StatusOK {
					failed++
					x.complain("a probe of %s: %v", path, err)
				}
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	x.note("%d of %d probes failed", failed, 3*times*len(addresses))
}

func httpCrowd(x *trial) {
	n := pick(x, 250, 10_500)
	idle := fillPort(x.service.http, n)
	defer func() { leave(idle) }()
	x.probe(pick(x, 5, 20), x.service.http, x.service.health)
	// More connections arrive meanwhile.
	idle = append(idle, fillPort(x.service.http, n/10)...)
	x.probe(1, x.service.http, x.service.health)
}

func unfinishedBodies(x *trial) {
	const length = 1 << 20
	n := pick(x, 350, 1200)
	head := fmt.Sprintf("POST /json HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		length)
	body := head + `{"domain":"` + strings.Repeat("a", length-1-len(`{"domain":"`))
	idle := fillPort(x.service.http, n)
	defer leave(idle)
	sent := sendAll(idle, body)
	x.awaitSample()
	x.note("%d of %d bodies were taken", sent, n)
}

// sendAll sends a text to each connection, 32 at a time, and returns how many took it within two seconds.
func sendAll(conns []net.Conn, text string) (taken int64) {
	var count atomic.Int64
	var all sync.WaitGroup
	places := make(chan struct{}, 32)
	for _, c := range conns {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			_ = c.SetDeadline(time.Now().Add(2 * time.Second))
			if _, err := io.WriteString(c, text); err == nil {
				count.Add(1)
			}
		})
	}
	all.Wait()
	return count.Load()
}

// unreadJSON asks again and again, with sockets that take little and are never read.
func unreadJSON(x *trial) {
	// Few descriptors with long answers: memory is attacked here, and not the cores.
	descriptors := strings.Repeat(`{"entries":[{"key":"a","value":""}]},`, 100)
	body := `{"domain":"siege","descriptors":[` + strings.TrimSuffix(descriptors, ",") + `]}`
	ask := fmt.Sprintf("POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	list := fillPort(x.service.http, pick(x, 200, 1500))
	defer leave(list)
	var all sync.WaitGroup
	var sent atomic.Int64
	places := make(chan struct{}, 32)
	for _, c := range list {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			_ = c.(*net.TCPConn).SetReadBuffer(4096)
			_ = c.SetDeadline(time.Now().Add(time.Second))
			for range 8 {
				if _, err := io.WriteString(c, ask); err != nil {
					return
				}
				sent.Add(1)
			}
		})
	}
	all.Wait()
	x.awaitSample()
	x.note("%d calls were sent over %d connections", sent.Load(), len(list))
}

// largeJSON asks with large bodies as fast as they are answered.
func largeJSON(x *trial) {
	const descriptors, entries, length = 1000, 16, 1 << 20
	entry := `{"key":"%s","value":"x"}`
	text := (length-100)/descriptors/entries - len(entry) // of a key
	many := strings.Repeat(fmt.Sprintf(entry, strings.Repeat("k", text))+",", entries)
	counted := fmt.Sprintf(entry, "greedy") + ","
	var asks []string
	for _, list := range []string{many, counted} {
		one := `{"entries":[` + strings.TrimSuffix(list, ",") + `]},`
		body := `{"domain":"siege","descriptors":[` + strings.TrimSuffix(strings.Repeat(one, descriptors), ",") + `]}`
		asks = append(asks, fmt.Sprintf("POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	}
	var all sync.WaitGroup
	var answered, lost, refused atomic.Int64
	until := time.Now().Add(pick(x, 2*time.Second, 15*time.Second))
	for i := range pick(x, 16, 64) {
		all.Go(func() {
			for time.Now().Before(until) {
				codes, err := askHTTP(x.service.http, asks[i%len(asks)], until)
				for _, code := range codes {
					if answered.Add(1); code != http.StatusOK {
						refused.Add(1)
					}
				}
				if err != nil && time.Now().Before(until) {
					lost.Add(1)
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	all.Wait()
	if answered.Load() == refused.Load() {
		x.complain("none of %d calls was decided", answered.Load())
	}
	x.note("%d calls were answered, %d of them refused, and %d connections closed", answered.Load(), refused.Load(),
		lost.Load())
}

// askHTTP sends the same request over one connection again and again, and returns the
// status of each answer.
func askHTTP(addr, ask string, until time.Time) (codes []int, err error) {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(until.Add(time.Second)); err != nil {
		return nil, err
	}
	in := bufio.NewReader(c)
	for time.Now().Before(until) {
		if _, err := io.WriteString(c, ask); err != nil {
			return codes, err
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return codes, err
		}
		codes = append(codes, resp.StatusCode)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return codes, err
		}
	}
	return codes, nil
}

// noFiles has the service lose its connections to the store when nothing seems to
// be left to make new ones with.
func noFiles(x *trial) {
	var idle []net.Conn
	for _, addr := range []string{
		x.service.http, x.service.grpc, x.service.divvy, x.service.resp, x.service.debug,
		x.service.prometheus,
	} {
		idle = append(idle, fillPort(addr, 300)...)
	}
	files, err := x.service.kernelVitals()
	if err != nil {
		x.complain("%v", err)
	}
	x.note("%d files were open", files.Files)
	for range 5 {
		x.proxy.Reset()
		lost := time.Now()
		if err := harness.Retry(pick(x, 5*time.Second, 2*time.Second), func() error {
			now := time.Now()
			q := x.neighbour.between(now.Add(-min(200*time.Millisecond, now.Sub(lost))), now)
			if q.calls == 0 || q.failed > 0 {
				return fmt.Errorf("%d of the neighbour's %d calls fail: %s", q.failed, q.calls, x.neighbour.problem())
			}
			return nil
		}); err != nil {
			x.complain("the store is not reached again: %v", err)
			break
		}
	}
	x.service.writeRules(x.T, "siege.yaml", baseRules+"- {key: late, rate_limit: {unit: hour, requests_per_unit: 0}}\n")
	if err := x.awaitLateRule(pick(x, 5*time.Second, 2*time.Second)); err != nil {
		x.complain("a reload takes no effect: %v", err)
	}
	x.probe(1, x.service.http, x.service.health)
	if err := x.newcomer(); err != nil {
		x.note("a newcomer on the gRPC port: %v", err)
	}
	leave(idle)
}
