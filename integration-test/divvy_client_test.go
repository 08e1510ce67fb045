package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/testbed/redistest"
)

// divvyClientVersion is the newest release of @button/divvy-client.
const divvyClientVersion = "1.0.1"

// divvyClient returns the program of Node and the directory of packages with the
// client in it, or skips the test, or fails it when CI is "true".
func divvyClient(t *testing.T) (node, packages string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: not starting divvy's client")
	}
	node, err := exec.LookPath("node")
	if err == nil {
		packages, err = findDivvyClient()
	}
	switch {
	case err == nil:
		return node, packages
	case os.Getenv("CI") == "true":
		t.Fatalf("no client of divvy to test with: %v", err)
	default:
		t.Skipf("no client of divvy to test with; put node and npm on PATH: %v", err)
	}
	return "", ""
}

// findDivvyClient installs the client once into the user's cache directory.
var findDivvyClient = sync.OnceValues(func() (string, error) {
	return installOnce("divvy-client-"+divvyClientVersion, npmInstall("@button/divvy-client", divvyClientVersion))
})

// clientStep is one of testdata/divvy-client.js.
type clientStep struct {
	Hit        map[string]any `json:"hit"`
	Times      int            `json:"times,omitempty"`
	Eventually bool           `json:"eventually,omitempty"`
}

// askDivvyClient has the published client ask. Its answers are in the words of the
// protocol.
func askDivvyClient(t *testing.T, port string, steps []clientStep) []string {
	t.Helper()
	node, packages := divvyClient(t)
	input, err := json.Marshal(steps)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "testdata/divvy-client.js", port)
	cmd.Env = append(os.Environ(), "NODE_PATH="+packages)
	cmd.Stdin = strings.NewReader(string(input))
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var answers []any
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	var said []string
	for _, a := range answers {
		if list, ok := a.([]any); ok {
			a = fmt.Sprintf("OK %v %v %v", list[0], list[1], int64(list[2].(float64)))
		}
		said = append(said, fmt.Sprint(a))
	}
	return said
}

// The client that Button publishes is answered what it expects, on both stores.
func TestDivvyClient(t *testing.T) {
	t.Parallel()
	divvyClient(t)
	redis := redistest.Start(t, redistest.Options{})
	host, port, err := net.SplitHostPort(redis.Addr)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "bakery.ini")
	if err := os.WriteFile(config, []byte(`
[path=/rye]
creditLimit = 2
resetSeconds = 100000
actorField = ip
[path=/rolls]
creditLimit = 150
resetSeconds = 100000
[path=/bagels]
creditLimit = 1
resetSeconds = 1
[path=/free]
creditLimit = 7
resetSeconds = 0
[default]
creditLimit = 0
`), 0o644); err != nil {
		t.Fatal(err)
	}
	steps, want := divvyConversation()
	for _, store := range []struct{ name, env string }{
		{"memory", ""},
		{"redis", "REDIS_HOST=" + host + " REDIS_PORT=" + port + " REDIS_TIMEOUT=5s"},
	} {
		t.Run(store.name, func(t *testing.T) {
			begun := time.Now()
			d := startDivvy(t, config, append(strings.Fields(store.env), "DIVVY_MAX_LINE_BYTES=2000")...)
			got := askDivvyClient(t, d.port, steps)
			for i := range max(len(got), len(want)) {
				if i >= len(got) || i >= len(want) || !sameReply(got[i], want[i], time.Since(begun)) {
					t.Fatalf("answer %d: got %q, want %q", i, got[min(i, len(got)):], want[min(i, len(want)):])
				}
			}
			// A window that ends gives its credit back.
			for _, answer := range askDivvyClient(t, d.port, []clientStep{{Hit: clientHit("path", "/bagels")}}) {
				if !sameReply(answer, "OK true 0 1", time.Second) {
					t.Errorf("the first bagel: %s", answer)
				}
			}
			awaitNewWindow(t, d)
			d.stop(t)
		})
	}
}

// clientHit is a hit with these keys and values.
func clientHit(pairs ...any) map[string]any {
	m := make(map[string]any)
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// divvyConversation returns hits, and the replies of a service without counters.
func divvyConversation() (steps []clientStep, want []string) {
	steps = []clientStep{
		{Hit: clientHit("path", "/rye", "ip", 1), Times: 3},
		{Hit: clientHit("path", "/rye", "ip", 2, "unset", nil)},
		{Hit: clientHit("path", "/free"), Times: 2},
		{Hit: clientHit()},
		{Hit: clientHit("path", "/rolls"), Times: 100},
		{Hit: clientHit("path", strings.Repeat("x", 3000))}, // longer than lines may be: ERR, and the connection ends
		{Hit: clientHit("path", "/rye", "ip", 3), Eventually: true},
		{Hit: clientHit("path", "/rolls"), Times: 51},
	}
	want = []string{
		"OK true 1 100000", "OK true 0 100000", "OK false 0 100000",
		"OK true 1 100000",
		"OK true 7 0", "OK true 7 0",
		"OK false 0 -1",
	}
	for left := 149; left >= 50; left-- {
		want = append(want, fmt.Sprintf("OK true %d 100000", left))
	}
	want = append(want, `BadResponseError: ERR unknown "Line is longer than 2000 bytes."`, "OK true 1 100000")
	for left := 49; left >= 0; left-- {
		want = append(want, fmt.Sprintf("OK true %d 100000", left))
	}
	want = append(want, "OK false 0 100000")
	return steps, want
}

// awaitNewWindow sends hits until a new window begins.
func awaitNewWindow(t *testing.T, d *divvy) {
	t.Helper()
	deadline := time.Now().Add(patience)
	conn := d.dial(t)
	for answer := ""; !strings.HasPrefix(answer, "OK true 0 "); time.Sleep(pollEvery) {
		if _, err := fmt.Fprint(conn, "HIT path=/bagels\n"); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 100)
		n, err := conn.Read(line)
		if answer = string(line[:n]); err != nil || time.Now().After(deadline) {
			t.Fatalf("the window does not end: %q, %v", answer, err)
		}
	}
}
