package integration

import (
	"errors"
	"net/http"
	"path/filepath"
	"testing"
)

// A caller that has used up its limit is refused after a restart, by SIGTERM and by SIGKILL. After SIGKILL at most the
// hits since the last snapshot are lost.
func TestRestartsKeepCounters(t *testing.T) {
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]")
	env := append(rules.env(), "DISABLE_STATS=true", "MEMORY_SNAPSHOT_INTERVAL=1s",
		"MEMORY_SNAPSHOT="+filepath.Join(t.TempDir(), "counters"))
	s := startService(t, env...)
	admitted := func(user string, want int) {
		t.Helper()
		for i := range 5 {
			status, _ := s.ask(t, "d", "user="+user)
			if (status == http.StatusOK) != (i < want) {
				t.Errorf("%s, request %d: %d, want %d admitted", user, i, status, want)
			}
		}
	}
	admitted("a", 3)
	s.stop(t)

	s = startService(t, env...)
	admitted("a", 0)
	admitted("b", 3)
	written := s.stat(t, "ratelimit.memory.snapshot.file_bytes")
	s.until(t, "the second counter is in the file", func() error {
		if s.stat(t, "ratelimit.memory.snapshot.file_bytes") == written {
			return errors.New("its size has not changed")
		}
		return nil
	})
	s.kill(t)

	s = startService(t, env...)
	admitted("a", 0)
	admitted("b", 0)
	admitted("c", 3)
}
