package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

var manyKeys = flag.Bool("flood", false, "TestFloodOfKeys: 26 million keys too, which takes minutes")

// The process stays below the cap on counters plus 64 MiB, however many callers
// come once, and a caller that is over its limit stays refused.
func TestFloodOfKeys(t *testing.T) {
	for _, tt := range []struct {
		name        string
		keys        int
		env         []string
		capMiB      int // that MEMORY_MAX_BYTES is, or is by default
		cgroupMiB   int // 0: none
		whenFlooded bool
	}{
		{"default from GOMEMLIMIT", 1_400_000, []string{"GOMEMLIMIT=64MiB"}, 32, 112, false},
		{"cap of 16 MiB", 800_000, []string{"MEMORY_MAX_BYTES=16777216"}, 16, 0, false},
		{"the examples' size", 26_000_000, []string{"GOMEMLIMIT=224MiB"}, 112, 256, true},
		{"default", 26_000_000, nil, 256, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.whenFlooded && !*manyKeys {
				t.Skip("takes minutes; -flood runs it")
			}
			rules := filepath.Join(t.TempDir(), "rules.yaml")
			if err := os.WriteFile(rules, []byte(floodRules), 0o600); err != nil {
				t.Fatal(err)
			}
			env := append(tt.env, "RUNTIME_ROOT="+filepath.Dir(filepath.Dir(rules)),
				"RUNTIME_SUBDIRECTORY="+filepath.Base(filepath.Dir(rules)), "RUNTIME_APPDIRECTORY=.")
			cmd := serviceCommand(t, env...)
			if tt.cgroupMiB > 0 {
				inMemoryCgroup(t, cmd, tt.cgroupMiB)
			}
			s := &service{process: start(t, "ratelimit", cmd)}
			s.awaitReady(t)
			flood(t, s.grpc, tt.keys)
			const inFlight = 8 // MiB, four calls of 1,000 descriptors
			if peak := s.peak(t); peak > tt.capMiB+64+inFlight {
				t.Errorf("%d MiB resident at most, the cap on counters is %d", peak, tt.capMiB)
			} else {
				t.Logf("%d MiB resident at most, the cap on counters is %d", peak, tt.capMiB)
			}
		})
	}
}

const floodRules = `
domain: flood
descriptors:
  - key: ip
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2}
`

// flood asks once for each of so many keys, in calls of a thousand. Before that a
// user is refused, and still is afterwards.
func flood(t *testing.T, addr string, keys int) {
	t.Helper()
	user := &rlsv3.RateLimitRequest{Domain: "flood", Descriptors: []*commonv3.RateLimitDescriptor{
		{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: "banned"}}},
	}}
	const callers, perCall = 4, 1000
	var next atomic.Int64
	var wg sync.WaitGroup
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := rlsv3.NewRateLimitServiceClient(conn)
	for i := range 4 {
		answer, err := client.ShouldRateLimit(t.Context(), user)
		if err != nil || (answer.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT) != (i >= 2) {
			t.Fatalf("call %d: %v, %v", i, answer, err)
		}
	}
	for range callers {
		wg.Go(func() {
			request := &rlsv3.RateLimitRequest{Domain: "flood"}
			for range perCall {
				request.Descriptors = append(request.Descriptors,
					&commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "ip"}}})
			}
			for {
				first := next.Add(perCall) - perCall
				if first >= int64(keys) {
					return
				}
				for i, d := range request.Descriptors {
					d.Entries[0].Value = strconv.FormatInt(first+int64(i), 36)
				}
				if _, err := client.ShouldRateLimit(t.Context(), request); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	answer, err := client.ShouldRateLimit(t.Context(), user)
	if err != nil || answer.OverallCode != rlsv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("the user that was refused before: %v, %v", answer, err)
	}
}

var highWater = regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`)

// peak is the most memory that was resident, in MiB.
func (p *process) peak(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Skip(err)
	}
	m := highWater.FindSubmatch(text)
	if m == nil {
		t.Fatalf("no VmHWM in\n%s", text)
	}
	kilobytes, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes >> 10
}

// inMemoryCgroup has cmd run in a memory cgroup of its own, where this machine lets
// the test make one.
func inMemoryCgroup(t *testing.T, cmd *exec.Cmd, mebibytes int) {
	t.Helper()
	dir, err := os.MkdirTemp("/sys/fs/cgroup/memory", "ratelimit-test-")
	if err != nil {
		t.Logf("without a memory cgroup: %v", err)
		return
	}
	t.Cleanup(func() { _ = os.Remove(dir) }) // runs after the process has ended
	if err := os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte(strconv.Itoa(mebibytes<<20)),
		0); err != nil {
		t.Logf("without a memory cgroup: %v", err)
		return
	}
	cmd.Args = append([]string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(dir, "cgroup.procs"), cmd.Path},
		cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
}
