package integration

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// swap makes the link current lead to target, in one step.
func swap(t *testing.T, target, current string) {
	t.Helper()
	draft := current + ".draft"
	link(t, target, draft)
	if err := os.Rename(draft, current); err != nil {
		t.Fatal(err)
	}
}

// A deployment swaps the link RUNTIME_ROOT. What of that is a load, and what stays in force when the rules are gone.
func TestUpstreamSwaps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	current := filepath.Join(dir, "current")
	for version, limit := range map[string]string{"1": "10", "2": "10", "3": "30"} {
		write(t, filepath.Join(dir, version, "ratelimit/config/d.yaml"),
			ruleWithLimit("unit: year, requests_per_unit: "+limit))
	}
	swap(t, "1", current)
	u := &upstream{service: startService(t, "RUNTIME_ROOT="+current, "RUNTIME_SUBDIRECTORY=ratelimit",
		"RUNTIME_DEBOUNCE=10ms")}
	u.dial(t)
	u.runStep(t, "grpc", "d", 1, step{ask: "a", want: "OK 9/10 YEAR"})
	t.Run("differs: a swap to the same rules is no load", func(t *testing.T) {
		before := u.stats(t)
		for _, version := range []string{"2", "1", "2"} {
			swap(t, version, current)
			time.Sleep(500 * time.Millisecond) // of which RUNTIME_DEBOUNCE is 10
		}
		u.reload(t, func() { swap(t, "3", current) }, "config_load_success")
		u.runStep(t, "grpc", "d", 2, step{ask: "a", want: "OK 28/30 YEAR"})
		if n := moved(before, u.stats(t), serviceStats)["config_load_success"]; n != 1 {
			t.Errorf("four swaps, one of them to other rules, are %d loads", n)
		}
	})
	for i, gone := range []string{filepath.Join(dir, "3"), current} {
		t.Run("differs: rules stay in force, and the log says so, when this disappears: "+filepath.Base(gone),
			func(t *testing.T) {
				logged := len(u.log(t))
				if err := os.RemoveAll(gone); err != nil {
					t.Fatal(err)
				}
				u.logs(t, logged, "rules refused, the old ones stay in force")
				u.logs(t, logged, gone+" does not exist; create it, or set RUNTIME_ROOT")
				u.runStep(t, "grpc", "d", i+3, step{ask: "a", want: []string{"OK 27/30 YEAR", "OK 26/30 YEAR"}[i]})
				if status, text := u.healthcheck(t); status != http.StatusOK {
					t.Errorf("/healthcheck answers %d %q", status, text)
				}
				if text := u.page(t, "/rlconfig"); !strings.HasPrefix(text, "# newer rules were refused at 20") {
					t.Errorf("/rlconfig begins with %.100q", text)
				}
			})
	}
	t.Run("rules that come back take effect", func(t *testing.T) {
		u.reload(t, func() { swap(t, "1", current) }, "config_load_success")
		u.runStep(t, "grpc", "d", 5, step{ask: "a", want: "OK 5/10 YEAR"})
	})
	if n := strings.Count(u.log(t), "port=grpc"); n != 1 {
		t.Errorf("the log names the gRPC port %d times", n)
	}
}
