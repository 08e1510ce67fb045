package integration

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// divvy is a running `ratelimit divvy`.
type divvy struct {
	*process
	port string
}

var divvyListens = regexp.MustCompile(`(?m)^Listening on port TCP port (\d+), (.*)$`)

// startDivvy starts `ratelimit divvy` on a free port and waits until it listens.
func startDivvy(t *testing.T, config string, env ...string) *divvy {
	t.Helper()
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "divvy", config)
	cmd.Env = append([]string{"PORT=0", "DIVVY_HOST=127.0.0.1"}, env...)
	d := &divvy{process: start(t, "ratelimit divvy", cmd)}
	d.until(t, "divvy listens", func() error {
		m := divvyListens.FindStringSubmatch(d.log(t))
		if m == nil {
			return errors.New("it does not say so")
		}
		d.port = m[1]
		return nil
	})
	return d
}

// dial opens a connection.
func (d *divvy) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+d.port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// sessions are what examples/divvy/sessions.txt holds: lines that are said and
// replies, without comments.
func sessions(t *testing.T) (all [][]string) {
	t.Helper()
	text := testfiles.Read(t, filepath.Join(repository, "examples/divvy/sessions.txt"))
	for session := range strings.SplitSeq(string(text), "\n\n") {
		var lines []string
		for line := range strings.Lines(session) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
		if lines != nil {
			all = append(all, lines)
		}
	}
	return all
}

func isReply(line string) bool {
	return strings.HasPrefix(line, "OK ") || strings.HasPrefix(line, "ERR ")
}

// sameReply compares replies. Seconds of what passes may be fewer than wanted, as
// many as went by.
func sameReply(got, want string, passed time.Duration) bool {
	g, w := strings.Fields(got), strings.Fields(want)
	if got == want || len(g) != 4 || len(w) != 4 || w[0] != "OK" {
		return got == want
	}
	seconds, err := strconv.Atoi(g[3])
	wanted, err2 := strconv.Atoi(w[3])
	if err != nil || err2 != nil || wanted <= 0 {
		return false
	}
	return g[0] == w[0] && g[1] == w[1] && g[2] == w[2] && seconds <= wanted && seconds >= wanted-1-int(passed/time.Second)
}

func TestDivvySessions(t *testing.T) {
	all := sessions(t)
	if len(all) < 8 {
		t.Fatalf("only %d sessions found", len(all))
	}
	for _, file := range []string{"example-config.ini", "example-config.json"} {
		begun := time.Now()
		d := startDivvy(t, filepath.Join(repository, "examples/divvy", file))
		for _, session := range all {
			conn := d.dial(t)
			replies := bufio.NewReader(conn)
			last := ""
			for _, line := range session {
				if !isReply(line) {
					if _, err := io.WriteString(conn, line+"\r\n"); err != nil {
						t.Fatalf("%s: %s: %v", file, line, err)
					}
					last = line
					continue
				}
				got, err := replies.ReadString('\n')
				if got = strings.TrimSuffix(got, "\n"); err != nil || !sameReply(got, line, time.Since(begun)) {
					t.Fatalf("%s: %s: answered %q (%v), want %q", file, last, got, err, line)
				}
				if strings.HasPrefix(line, "ERR ") {
					if rest, err := io.ReadAll(replies); len(rest) > 0 || err != nil {
						t.Errorf("%s: %s: not the end: %q, %v", file, last, rest, err)
					}
				}
			}
		}
		d.stop(t)
	}
}

// The session that docs/migrating-from-divvy.md shows is one of those.
func TestDivvySessionInDocument(t *testing.T) {
	text := testfiles.Read(t, filepath.Join(repository, "docs/migrating-from-divvy.md"))
	m := regexp.MustCompile("(?s)Escape character is '\\^\\]'\\.\n(.*?)```").FindStringSubmatch(string(text))
	if m == nil {
		t.Fatal("docs/migrating-from-divvy.md shows no session")
	}
	for _, session := range sessions(t) {
		if strings.Join(session, "\n") == strings.TrimSpace(m[1]) {
			return
		}
	}
	t.Errorf("not in examples/divvy/sessions.txt:\n%s", m[1])
}

func TestDivvyProcess(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "rules.ini")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("[default]\ncreditLimit = 5\nresetSeconds = 3600\n")
	d := startDivvy(t, config, "RUNTIME_DEBOUNCE=10ms")
	line := divvyListens.FindStringSubmatch(d.log(t))[0]
	if line != "Listening on port TCP port "+d.port+", counters in memory" {
		t.Errorf("it says %q", line)
	}
	conn := d.dial(t)
	replies := bufio.NewReader(conn)
	hit := func(want string) error {
		if _, err := io.WriteString(conn, "HIT\n"); err != nil {
			return err
		}
		if got, err := replies.ReadString('\n'); err != nil || got != want {
			return fmt.Errorf("answered %q, %v", got, err)
		}
		return nil
	}
	if _, err := io.WriteString(conn, "HIT\n"); err != nil {
		t.Fatal(err)
	}
	got, err := replies.ReadString('\n')
	if err != nil || !sameReply(strings.TrimSpace(got), "OK true 4 3600", time.Second) {
		t.Errorf("answered %q, %v", got, err)
	}
	write("[default]\ncreditLimit = none\n")
	d.until(t, "the bad rules are refused", func() error {
		if !strings.Contains(d.log(t), "the old ones stay in force") {
			return errors.New("not yet")
		}
		return nil
	})
	write("[default]\ncreditLimit = 0\n")
	d.until(t, "the good rules are in force, on a connection that was open", func() error { return hit("OK false 0 -1\n") })

	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"divvy"}, 2, "ratelimit divvy CONFIG"},
		{[]string{"divvy", filepath.Join(dir, "none.ini")}, 1, "none.ini does not exist"},
		{[]string{"divvy", "rules.conf"}, 1, "ends in .ini or .json"},
	} {
		cmd := exec.Command(path, tt.args...)
		cmd.Env = []string{"PORT=0"}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != tt.code || !strings.Contains(string(out), tt.want) {
			t.Errorf("%q: %v\n%s", tt.args, err, out)
		}
	}
}
