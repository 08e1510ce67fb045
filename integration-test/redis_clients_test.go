package integration

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

const (
	nodeRedisVersion = "6.3.1"
	redisPyVersion   = "8.1.0"
)

// redisExamples are programs that ask the service with clients of Redis.
const redisExamples = "../examples/redis-clients"

// redisLibraries are client libraries of Redis, each with a function that returns the start of a command, to which
// port, protocol and name are added, and a variable for it.
var redisLibraries = map[string]func() (args []string, env string, err error){
	"redis-py": func() ([]string, string, error) {
		python, err := installOnce("redis-py-"+redisPyVersion, pipInstall("redis", redisPyVersion))
		return []string{python, redisExamples + "/client.py"}, "", err
	},
	"node-redis": func() ([]string, string, error) {
		packages, err := installOnce("node-redis-"+nodeRedisVersion, npmInstall("redis", nodeRedisVersion))
		return []string{"node", redisExamples + "/client.js"}, "NODE_PATH=" + packages, err
	},
	"go-redis": func() ([]string, string, error) {
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, "", err
		}
		program := filepath.Join(cache, "ratelimit-test", "redisclient") // Go builds it again only if the module has changed.
		build, err := harness.GoCommand(context.Background(), "build", "-C", "examples/redis-clients/go", "-o", program, ".")
		if err != nil {
			return nil, "", err
		}
		if out, err := build.CombinedOutput(); err != nil {
			return nil, "", &exec.Error{Name: string(out), Err: err}
		}
		return []string{program}, "", nil
	},
}

// startRESP starts a service with rules for clients of Redis, and a password.
func startRESP(t *testing.T) (port string, s *service) {
	t.Helper()
	s = startServiceFrom(t, redisExamples+"/config", "RESP_HOST=127.0.0.1", "RESP_PORT=0", "RESP_PASSWORD=open")
	_, port, err := net.SplitHostPort(s.resp)
	if err != nil {
		t.Fatal(err)
	}
	return port, s
}

// The libraries of three languages get the same answers, in both versions of the protocol.
func TestRedisLibraries(t *testing.T) {
	port, _ := startRESP(t)
	for library, find := range redisLibraries {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			args, env, err := find()
			switch {
			case err != nil && os.Getenv("CI") == "true":
				t.Fatalf("no %s to test with: %v", library, err)
			case err != nil:
				t.Skipf("no %s to test with: %v", library, err)
			}
			for _, protocol := range []string{"2", "3"} {
				name := library + protocol
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, args[0], append(args[1:len(args):len(args)], port, protocol, name)...)
				cmd.Env = append(os.Environ(), env)
				out, err := cmd.Output()
				var got []any
				if err == nil {
					err = json.Unmarshal(out, &got)
				}
				if err != nil {
					t.Fatalf("%v: %v\n%s", cmd, err, out)
				}
				if got, want := withoutTimes(got), librarySession(name); !reflect.DeepEqual(got, want) {
					t.Errorf("protocol %s:\n got %v\nwant %v", protocol, got, want)
				}
			}
		})
	}
}

// librarySession returns what the programs in redisExamples are answered, as withoutTimes returns it.
func librarySession(name string) []any {
	five := func(limited, limit, remaining float64) []any { return []any{limited, limit, remaining} }
	level := func(path string, limit, remaining float64) []any { return []any{path, 0.0, limit, remaining} }
	return []any{
		"PONG", five(0, 10, 9), five(0, 10, 8), five(0, 10, 7), five(0, 16, 15),
		[]any{five(0, 6, 5), []any{level("user:"+name, 16, 15), level("user:"+name+":trade", 6, 5)}},
		five(0, 10, 9), five(0, 10, 8), five(0, 10, 7), five(0, 10, 6),
		"there are no transactions: each command is atomic, and commands that are sent together are decided together",
		"there are no channels",
		"error: unknown command", "still here",
	}
}

// withoutTimes returns results of a client without what differs between libraries and runs: the last two of five and of
// six numbers, and the start of errors.
func withoutTimes(results []any) []any {
	for i, v := range results {
		switch v := v.(type) {
		case string:
			_, reason, isRefusal := strings.Cut(v, " is not supported: ")
			switch {
			case isRefusal:
				results[i] = reason
			case strings.Contains(v, "unknown command"):
				results[i] = "error: unknown command"
			}
		case []any:
			if v = withoutTimes(v); len(v) == 5 || len(v) == 6 {
				v = v[:len(v)-2]
			}
			results[i] = v
		}
	}
	return results
}

// The programs of Redis itself work.
func TestRedisPrograms(t *testing.T) {
	port, _ := startRESP(t)
	run := func(program string, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, append([]string{"-p", port, "-a", "open"}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for _, tt := range []struct{ args, want string }{
		{"PING", "PONG"},
		{"RATELIMIT api user alex", "0\n10\n9\n-1\n"},
		{"-3 RATELIMIT api user alex HITS 2", "0\n10\n7\n-1\n"},
		{"RATELIMIT.EXPLAIN api user alex", "api: user=alex\n  user=alex\n    takes user ("},
		{"RATELIMIT.RESET api user alex", "1"},
		{"RATELIMIT api user alex HITS 11", "1\n10\n0\n"},
		{"GET foo", "ERR unknown command 'GET', with args beginning with: 'foo'"},
	} {
		if got := run("redis-cli", strings.Fields(tt.args)...); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.args, got, tt.want)
		}
	}
	if out := run("redis-benchmark", "-q", "-n", "2000", "-c", "50", "-P", "16", "-r", "1000", "RATELIMIT", "api", "user",
		"__rand_int__"); !strings.Contains(out, "requests per second") {
		t.Errorf("redis-benchmark: %s", out)
	}
}

// The session of the example shows what its comments say.
func TestRedisSession(t *testing.T) {
	port, _ := startRESP(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, redisExamples+"/session.sh", port).CombinedOutput()
	numbers := strings.Fields(string(out))
	if err != nil || len(numbers) != 20+5+2*6 {
		t.Fatalf("%v\n%s", err, out)
	}
	// Limited, limit and remaining of each reply; the times depend on the clock.
	for i, want := range []string{"0 10 9", "0 10 6", "1 10 0", "0 16 15", "0 6 5", "user:alex 0 16"} {
		if got := strings.Join(numbers[5*i:5*i+3], " "); got != want {
			t.Errorf("reply %d: got %s, want %s", i+1, got, want)
		}
	}
}
