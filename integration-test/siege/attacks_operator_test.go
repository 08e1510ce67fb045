//go:build linux

package siege

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"ratelimit/testbed/harness"
)

// Attacks on what operators use: pages, the stream of events, the file of a snapshot.
var operatorAttacks = []attack{
	{
		letter: "D", name: "listeners that never read",
		does: "32 connections to `/api/events` that never read; an operator who comes later gets a place " +
			"within 65 s",
		rules: "- {key: refused, rate_limit: {unit: hour, requests_per_unit: 0}}\n", strike: deafListeners,
	},
	{
		letter: "H", name: "a link in place of a lock file",
		does: "the lock file of `MEMORY_SNAPSHOT` is a link or another file: the service does not start, and " +
			"changes nothing",
		quiet: true, strike: foreignLocks,
	},
	{
		letter: "K", name: "pages asked for by other sites",
		does:  "requests that a browser sends for pages of other sites, to all pages of the debug port",
		quiet: true, strike: otherSites,
	},
}

// listen asks for events over a connection of its own, and returns the status line.
func (x *trial) listen() (c net.Conn, line string, err error) {
	if c, err = net.DialTimeout("tcp", x.service.debug, x.deadline); err != nil {
		return nil, "", err
	}
	_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	_ = c.SetDeadline(time.Now().Add(x.patience()))
	if _, err = fmt.Fprintf(c, "GET /api/events HTTP/1.1\r\nHost: %s\r\n\r\n", x.service.debug); err != nil {
		return c, "", err
	}
	status := make([]byte, len("HTTP/1.1 200"))
	_, err = io.ReadFull(c, status)
	return c, string(status), err
}

// deafListeners take all places and read nothing.
func deafListeners(x *trial) {
	const places = 32
	begun := time.Now()
	var deaf []net.Conn
	defer func() { leave(deaf) }()
	for range places {
		c, line, err := x.listen()
		if err != nil || line != "HTTP/1.1 200" {
			x.complain("a listener: %q, %v", line, err)
		}
		if c != nil {
			deaf = append(deaf, c)
		}
	}
	// Each refusal is an event.
	list := x.wires(2, true)
	defer hangUp(list)
	together(list, func(i int, w *wire) {
		if _, err := w.flood(pick(x, 20, 200), 5,
			func(int) []byte { return same(longestDescriptors, "refused", fmt.Sprint(i)) }); err != nil {
			x.suspect("%v", err)
		}
	})
	operator := func() error {
		c, line, err := x.listen()
		if c != nil {
			defer func() { _ = c.Close() }()
		}
		if err == nil && line != "HTTP/1.1 200" {
			err = fmt.Errorf("%s instead of events", line)
		}
		return err
	}
	if _, err := x.service.get("http://" + x.service.debug + "/api/state"); err != nil {
		x.complain("another page: %v", err)
	}
	if !x.full { // a place is kept for a minute
		if err := operator(); err == nil {
			x.complain("more than %d listeners have a place", places)
		}
		leave(deaf)
	}
	if err := harness.Retry(time.Until(begun.Add(65*time.Second)), operator); err != nil {
		x.complain("an operator: %v", err)
		return
	}
	x.note("an operator got a place after %.0f s", time.Since(begun).Seconds())
}

// foreignLocks starts the service where another user of the directory has put a file in place of the lock.
func foreignLocks(x *trial) {
	path, err := harness.BuiltService()
	if err != nil {
		x.Fatal(err)
	}
	for name, put := range map[string]func(victim, lock string) error{
		"a link":            os.Symlink,
		"a hard link":       os.Link,
		"another file":      func(_, lock string) error { return os.WriteFile(lock, []byte(secret), 0o600) },
		"a link to nowhere": func(victim, lock string) error { return os.Symlink(victim+".new", lock) },
	} {
		dir := x.TempDir()
		victim, lock := filepath.Join(dir, "victim"), filepath.Join(dir, "snapshot.lock")
		x.put(victim, secret)
		if err := put(victim, lock); err != nil {
			x.Fatal(err)
		}
		cmd := exec.CommandContext(x.ctx, path, "serve")
		cmd.Env = []string{
			"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
			"DIVVY_PORT=0", "RESP_PORT=0",
			"RUNTIME_ROOT=" + x.service.dir, "BACKEND_TYPE=memory", "USE_STATSD=false",
			"MEMORY_SNAPSHOT=" + filepath.Join(dir, "snapshot"),
		}
		output, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(output), lock) || strings.Contains(string(output), secret) {
			x.complain("%s: %v, %s", name, err, lastLine(string(output)))
		}
		if text, err := os.ReadFile(victim); err != nil || string(text) != secret {
			x.complain("%s: the other file has %q, %v", name, text, err)
		}
		if _, err := os.Stat(victim + ".new"); err == nil {
			x.complain("%s: a file was made through it", name)
		}
	}
}

// otherSites asks as browsers do.
func otherSites(x *trial) {
	asked := 0
	for _, path := range []string{
		"/", "/rlconfig", "/stats", "/explain?domain=siege", "/metrics", "/candidate", "/api/state", "/api/rates", "/api/top",
		"/api/denials", "/api/events",
		"/api/record?for=1s", "/debug/pprof/", "/debug/pprof/profile?seconds=1",
	} {
		for _, from := range []struct{ site, mode, dest string }{
			{"cross-site", "no-cors", "script"},
			{"cross-site", "cors", "empty"},
			{"same-site", "no-cors", "image"},
			{"cross-site", "navigate", "iframe"},
		} {
			r, err := http.NewRequestWithContext(x.ctx, http.MethodGet, "http://"+x.service.debug+path, nil)
			if err != nil {
				x.Fatal(err)
			}
			r.Header = http.Header{"Sec-Fetch-Site": {from.site}, "Sec-Fetch-Mode": {from.mode}, "Sec-Fetch-Dest": {from.dest}}
			resp, err := x.service.client.Do(r)
			if err != nil {
				x.complain("%s: %v", path, err)
				continue
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
				x.complain("%s for %v is answered %s with %v", path, from, resp.Status, resp.Header)
			}
			asked++
		}
	}
	x.note("%d requests of other sites were refused", asked)
}
