package simulate

import (
	"bytes"
	"flag"
	"io"
	"path/filepath"
	"testing"
	"testing/iotest"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

var update = flag.Bool("update", false, "write what is expected in testdata anew")

func load(tb testing.TB, text string) *rules.Set {
	tb.Helper()
	return limitertest.Load(tb, []filerules.File{{Name: "rules.yaml", Data: []byte(text)}})
}

func newMemory(tb testing.TB) backend.Backend {
	tb.Helper()
	return limitertest.Store(tb, memory.Config{})
}

func newRedis(t *testing.T, server *redistest.Server) *redis.Store {
	t.Helper()
	return runRedis(t, redis.Config{Addr: server.Addr})
}

// runRedis returns a store that runs until the test ends.
func runRedis(t *testing.T, cfg redis.Config) *redis.Store {
	t.Helper()
	cfg.Config = remote.Config{Timeout: 10e9, DialTimeout: 10e9, Connections: 1}
	s, err := redis.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	harness.RunInBackground(t, s.Run)
	return s
}

// simulated runs cfg with defaults for missing fields. It returns the decisions, and the
// summary without the parts that depend on the machine.
func simulated(t *testing.T, cfg Config, in io.Reader) (out, summary []byte, err error) {
	t.Helper()
	if cfg.Backend == nil {
		cfg.Backend = newMemory(t)
	}
	if cfg.Name == "" {
		cfg.Name = "requests.jsonl"
	}
	var b bytes.Buffer
	cfg.In, cfg.Out = in, &b
	s, err := Run(t.Context(), cfg)
	s.Elapsed = 0
	var text bytes.Buffer
	if err := s.Write(&text); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), text.Bytes(), err
}

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	data := testfiles.Read(t, filepath.Join(path...))
	return data
}

// testdata has rules, requests and the expected output, checked line by line by hand.
// Redis and memory both give exactly this output.
func TestGolden(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join("testdata", "*", "rules.yaml"))
	if err != nil || len(dirs) < 3 {
		t.Fatal(dirs, err)
	}
	server := redistest.Start(t, redistest.Options{})
	for _, file := range dirs {
		dir := filepath.Dir(file)
		set := load(t, string(read(t, file)))
		requests := read(t, dir, "requests.jsonl")
		golden := func(t *testing.T, cfg Config, in io.Reader, may bool) {
			t.Helper()
			cfg.Rules = set
			out, summary, err := simulated(t, cfg, in)
			if err != nil {
				t.Fatal(err)
			}
			for name, got := range map[string][]byte{"decisions.jsonl": out, "summary.txt": summary} {
				path := filepath.Join(dir, name)
				if *update && may {
					testfiles.Write(t, path, got)
				}
				if want := read(t, path); !bytes.Equal(got, want) {
					t.Errorf("%s\n got %s\nwant %s", path, got, want)
				}
			}
		}
		t.Run(filepath.Base(dir), func(t *testing.T) {
			golden(t, Config{}, bytes.NewReader(requests), true)
		})
		t.Run(filepath.Base(dir)+" byte by byte", func(t *testing.T) {
			golden(t, Config{}, iotest.OneByteReader(bytes.NewReader(requests)), false)
		})
		t.Run(filepath.Base(dir)+" on Redis", func(t *testing.T) {
			server.Do(t, "FLUSHALL")
			golden(t, Config{Backend: newRedis(t, server), KeyPrefix: "simulate-1:"}, bytes.NewReader(requests), false)
		})
	}
}
