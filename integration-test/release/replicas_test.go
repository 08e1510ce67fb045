package release

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

// firstCompared is the commit that is compared while there is no release: the first one whose records of holds in Redis
// are those of 1.0.0.
const firstCompared = "ae4b323"

// sharedLimit is the limit of each rule of replicaRules in a year, which no test crosses.
const sharedLimit = 7

// replicaRules have a limit for each algorithm.
const replicaRules = `domain: shared
descriptors:
  - {key: fixed_window, rate_limit: {unit: year, requests_per_unit: 7}}
  - {key: first_hit_window, rate_limit: {algorithm: first_hit_window, unit: year, requests_per_unit: 7}}
  - {key: sliding_window, rate_limit: {algorithm: sliding_window, unit: year, requests_per_unit: 7}}
  - {key: sliding_window_counter, rate_limit: {algorithm: sliding_window_counter, unit: year, requests_per_unit: 7}}
  - {key: gcra, rate_limit: {algorithm: gcra, unit: year, requests_per_unit: 1, burst: 6}}
  - {key: calendar, rate_limit: {unit: year, calendar: true, time_zone: Europe/Berlin, requests_per_unit: 7}}
  - {key: concurrency, rate_limit: {algorithm: concurrency, requests_per_unit: 7, hold: 1h, hold_id: id}}
`

// replica is a process of one version of the service.
type replica struct {
	name string
	url  string
}

// startReplica starts a binary on the rules in a directory and the Redis at an address.
func startReplica(t *testing.T, name, binary, rules, redis, keyFormat string) replica {
	t.Helper()
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	r := replica{name, fmt.Sprintf("http://127.0.0.1:%d", port)}
	p := &harness.Process{
		Path: binary, Args: []string{"serve", "--config", rules}, Log: filepath.Join(t.TempDir(), "log"),
		Env: []string{
			"HOST=127.0.0.1", "PORT=" + strconv.Itoa(port), "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1",
			"DEBUG_PORT=0",
			"BACKEND_TYPE=redis", "REDIS_URL=" + redis, "REDIS_TIMEOUT=10s", "CACHE_KEY_FORMAT=" + keyFormat,
			"DISABLE_STATS=true",
		},
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			p.ShowLog(t, name)
		}
	})
	harness.Await(t, patience, name, func() error {
		resp, err := http.Get(r.url + "/readyz")
		if err != nil {
			return err
		}
		_ = resp.Body.Close() // The status says all.
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/readyz: %s", resp.Status)
		}
		return nil
	})
	return r
}

// admits asks a replica about entries, key=value, and reports whether the request passes.
func (r replica) admits(t *testing.T, entries ...string) bool {
	t.Helper()
	var list []string
	for _, e := range entries {
		key, value, _ := strings.Cut(e, "=")
		list = append(list, fmt.Sprintf(`{"key":%q,"value":%q}`, key, value))
	}
	body := `{"domain":"shared","descriptors":[{"entries":[` + strings.Join(list, ",") + `]}]}`
	resp, err := http.Post(r.url+"/json", "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("%s: %q: %s, %v\n%s", r.name, entries, resp.Status, err, answer)
	}
	return resp.StatusCode == http.StatusOK
}

// previousVersion returns the newest tag below the last commit, or firstCompared.
func previousVersion(t *testing.T) string {
	t.Helper()
	tags := strings.Fields(run(t, repository, nil, "git", "tag", "--merged", "HEAD~1", "--sort=-version:refname",
		"--list", "v*"))
	if len(tags) > 0 {
		return tags[0]
	}
	return firstCompared
}

// Replicas of two versions share the counters of each algorithm: together they admit exactly the limit.
func TestVersionsShareCounters(t *testing.T) {
	needFull(t)
	dir := t.TempDir()
	binaries := make(map[string]string)
	for _, commit := range []string{previousVersion(t), "HEAD"} {
		source := filepath.Join(dir, commit)
		run(t, repository, nil, "git", "clone", "--quiet", ".", source)
		run(t, source, nil, "git", "checkout", "--quiet",
			strings.TrimSpace(run(t, repository, nil, "git", "rev-parse", commit)))
		run(t, source, nil, "make", "build")
		binaries[commit] = filepath.Join(source, "bin/ratelimit")
	}
	rules := filepath.Join(dir, "rules")
	if err := os.Mkdir(rules, 0o755); err != nil {
		t.Fatal(err)
	}
	testfiles.Write(t, filepath.Join(rules, "shared.yaml"), replicaRules)
	for _, format := range []string{"v1", "v2"} {
		t.Run(format, func(t *testing.T) {
			redis := redistest.Start(t, redistest.Options{})
			var both []replica
			for commit, binary := range binaries {
				both = append(both, startReplica(t, commit, binary, rules, redis.Addr, format))
			}
			shareCounters(t, both[0], both[1])
		})
	}
}

// shareCounters sends requests to two replicas in turn.
func shareCounters(t *testing.T, a, b replica) {
	both := []replica{a, b}
	for _, key := range []string{
		"fixed_window", "first_hit_window", "sliding_window", "sliding_window_counter", "gcra",
		"calendar", "concurrency",
	} {
		entries := func(i int) []string {
			if key == "concurrency" {
				return []string{key + "=x", fmt.Sprintf("id=%d", i)}
			}
			return []string{key + "=x"}
		}
		admitted := 0
		for i := range 3 * sharedLimit {
			if both[i%2].admits(t, entries(i)...) {
				admitted++
			}
		}
		if admitted != sharedLimit {
			t.Errorf("%s: %s and %s admitted %d together, want %d", key, a.name, b.name, admitted, sharedLimit)
		}
	}
	// Each releases a hold that the other one took: holds 0 and 2 are those of a, and 1 is one of b.
	for i, r := range []replica{b, a} {
		r.admits(t, "concurrency=x", fmt.Sprintf("id=%d", i), "hold=release")
		if !r.admits(t, "concurrency=x", fmt.Sprintf("id=new%d", i)) {
			t.Errorf("%s did not release hold %d", r.name, i)
		}
	}
}
