package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/tools/bench"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func linuxOnly(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("CPU times of processes are known on Linux only")
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--rounds 0":               "--rounds 0: must be 1 or more",
		"--duration 10ms":          "--duration 10ms: must be 100ms or more",
		"--warmup -1s":             "--warmup -1s: must not be below 0",
		"--gogc 0":                 "--gogc 0: must be 1 or more",
		"--engines=":               "--engines: name one or more",
		"--crowd 0":                "--crowd 0, --crowd-rate 10000: must be 1 or more",
		"--write --only Redis":     "--write and --only",
		"--only [":                 "--only: ",
		"--only nothing":           "no case has such a name; there are\n  memory, 100k keys, 2 x 32\n",
		"--sideways":               "unknown flag",
		"memory":                   "memory: there are flags only",
		"--rounds 2 --gogc x":      "invalid argument",
		"--duration 4s --gogc -10": "--gogc -10",
	} {
		var out, progress strings.Builder
		err := run(t.Context(), strings.Fields(args), &out, &progress)
		if err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%s: %v, %q, want %q", args, err, out.String(), want)
		}
	}
	var help strings.Builder
	if err := run(t.Context(), []string{"--help"}, &help, &help); err != nil ||
		!strings.Contains(help.String(), "--null-workers") {
		t.Errorf("%v, %q", err, help.String())
	}
}

func TestWithoutRedis(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var out, progress strings.Builder
	err := run(t.Context(), []string{"--only", "^Redis"}, &out, &progress)
	if err == nil || err.Error() != "no case is left" ||
		!strings.Contains(progress.String(), "no redis-server on the PATH") {
		t.Errorf("%v, %q", err, progress.String())
	}
	if err := run(t.Context(), []string{"--write"}, &out, &progress); err == nil ||
		!strings.Contains(err.Error(), "install it") {
		t.Error(err)
	}
	s := selection{cases: slices.Clone(cases), tails: slices.Clone(tailStores)}
	s.withoutRedis()
	for _, k := range s.services([]string{h2}) {
		if k.store != inMemory {
			t.Errorf("%v needs Redis", k)
		}
	}
}

// dead fails the test if a process is still there.
func dead(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Signal(syscall.Signal(0))
	}
	if !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("process %d: %v, want %v", pid, err, os.ErrProcessDone)
	}
}

// Everything is measured once, briefly.
func TestRun(t *testing.T) {
	linuxOnly(t)
	names := []string{"memory, fresh headers, 2 x 32"}
	if _, err := exec.LookPath("redis-server"); err == nil {
		names = append(names, "Redis, one hot key, 2 x 32", "over limit, local cache, 2 x 32")
	} else if os.Getenv("CI") == "true" {
		t.Error("there is no redis-server on the PATH")
	}
	extra := []string{tailTitle(inMemory), crowdTitle}
	file := filepath.Join(t.TempDir(), "e2e.json")
	args := []string{
		"--rounds", "2", "--duration", "300ms", "--warmup", "50ms", "--gogc", "800", "--null-workers", "2",
		"--engines", grpcGo, "--crowd", "20", "--crowd-rate", "4000",
		"--only", "^(" + strings.Join(append(extra, names...), "|") + ")$", "--json", file,
	}
	var out, progress strings.Builder
	if err := run(t.Context(), args, &out, &progress); err != nil {
		t.Fatalf("%v\n%s%s", err, progress.String(), out.String())
	}
	data := testfiles.Read(t, file)
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if r.Rounds != 2 || r.Duration != 0.3 || r.Warmup != 0.05 || r.GOGC != 800 || r.NullWorkers != 2 ||
		r.Go != runtime.Version() || r.Interrupted {
		t.Errorf("%+v", r)
	}
	if n := len(names) + len(extra); len(r.Cases) != len(names) || strings.Count(progress.String(), "round 2 of 2") != n {
		t.Fatalf("%d cases, progress\n%s", len(r.Cases), progress.String())
	}
	for i, c := range r.Cases {
		if c.title() != names[i] || len(c.Rounds) != 2 || c.CPU == nil || c.CPU.Lowest <= 0 || c.CPU.Highest < c.CPU.Median {
			t.Fatalf("%s: %+v", c.title(), c)
		}
		if !c.Rounds[0].EmptyFirst || c.Rounds[1].EmptyFirst {
			t.Errorf("%s: the turns do not change", c.title())
		}
		ours, empty := c.Rounds[1].Ours, c.Rounds[1].Empty
		if ours.Workload != c.Workload || empty.Workload != c.Workload || ours.Seed != empty.Seed ||
			ours.InFlight != c.InFlight || empty.InFlight != c.InFlight {
			t.Errorf("%s: unlike loads, %+v, %+v", c.title(), ours, empty)
		}
		if _, counted := ours.CPU[redisName]; counted != (c.Store != inMemory) {
			t.Errorf("%s: %v", c.title(), ours.CPU)
		}
		for _, used := range ours.CPU {
			dead(t, used.PID)
		}
		dead(t, empty.CPU[serverName].PID)
	}
	if len(r.Tails) != 1 || len(r.Crowds) != 1 {
		t.Fatalf("%d tails, %d crowds", len(r.Tails), len(r.Crowds))
	}
	if e := r.Tails[0].Engines[0]; e.Engine != grpcGo || e.P99.Median < e.P50.Median || e.Worse.Highest != 1 ||
		r.Tails[0].Rounds[1].Rate <= 1 {
		t.Errorf("%+v, %+v", e, r.Tails[0].Rounds)
	}
	c := r.Crowds[0]
	if c.Engine != grpcGo || c.CPU.Lowest <= 0 || c.P99.Median < c.P50.Median || c.Unsent != 0 ||
		c.Rounds[1].Loaded.Connections != 20 {
		t.Errorf("%+v", c)
	}
	for _, round := range c.Rounds {
		dead(t, round.Loaded.CPU[serverName].PID)
	}
}

// onRound cancels when the first case is about to be measured.
type onRound struct{ cancel context.CancelFunc }

func (w onRound) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "rounds: above") {
		time.AfterFunc(50*time.Millisecond, w.cancel)
	}
	return len(p), nil
}

func TestInterrupted(t *testing.T) {
	linuxOnly(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out strings.Builder
	begun := time.Now()
	err := run(ctx, []string{"--only", "^memory", "--engines", grpcGo, "--duration", "10m"}, &out, onRound{cancel})
	if !errors.Is(err, errInterrupted) || time.Since(begun) > 5*time.Minute {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
	if !strings.Contains(out.String(), "memory, fresh headers") {
		t.Errorf("no table: %q", out.String())
	}
}

// What the generator says against a server becomes the case's problem.
func TestLoad(t *testing.T) {
	linuxOnly(t)
	l := &lab{opt: &options{duration: minDuration, gogc: 400}}
	defer func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
		for _, p := range l.running {
			dead(t, p.pid())
		}
		if _, err := os.Stat(l.dir); !os.IsNotExist(err) {
			t.Errorf("%s: %v", l.dir, err)
		}
	}()
	if err := l.open(t.Context(), []serviceKey{{inMemory, grpcGo}}); err != nil {
		t.Fatal(err)
	}
	gone := l.empty
	gone.processes = []bench.Process{{Name: serverName, PID: 1 << 22}}
	for _, tt := range []struct {
		name, workload, want string
		to                   server
		problem              string // "": none
	}{
		{"as it should be", "uniform", "OK", l.services[serviceKey{inMemory, grpcGo}], ""},
		// no warm-up: the first is OK
		{"over from the first to the last", "overlimit", "OVER_LIMIT", l.services[serviceKey{inMemory, grpcGo}], "1 of "},
		{"over", "overlimit", "OVER_LIMIT", l.services[serviceKey{inMemory, grpcGo}], ""},
		{"never over", "overlimit", "OVER_LIMIT", l.empty, "were answered OK, not OVER_LIMIT"},
		{"nobody there", "hot", "OK", server{addr: "127.0.0.1:1"}, "cannot reach 127.0.0.1:1"},
		{"no such process", "hot", "OK", gone, "there is no such process"},
	} {
		ld := load{Client: lean, Workload: tt.workload, Connections: 2, InFlight: 1}
		_, err := l.generate(t.Context(), &ld, tt.to, tt.want, 1)
		for try := 0; try < 20 && err != nil && strings.Contains(err.Error(), "no time that could be measured"); try++ {
			_, err = l.generate(t.Context(), &ld, tt.to, tt.want, 1) // a busy machine gave the server less than 10 ms
		}
		switch {
		case err == nil:
			if tt.problem != "" {
				t.Errorf("%s: nothing was wrong", tt.name)
			}
		case tt.problem == "" || !strings.Contains(err.Error(), tt.problem) || strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: %q, want %q", tt.name, err, tt.problem)
		}
	}
}

func TestStartOfNothing(t *testing.T) {
	if _, err := start(t.TempDir(), "nothing", nil, filepath.Join(t.TempDir(), "nothing")); err == nil {
		t.Error("it was started")
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	p, err := start(t.TempDir(), "short", []string{"WORD=poor"}, sh, "-c", `echo "$WORD $HOME" >&2; exit 3`)
	if err != nil {
		t.Fatal(err)
	}
	err = p.await(t.Context(), func() error { return errors.New("never") })
	if !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "short: ended by itself, exit status 3:\npoor") {
		t.Error(err)
	}
	if home := os.Getenv("HOME"); home != "" && strings.Contains(p.log(), home) {
		t.Errorf("our environment was handed on: %q", p.log())
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

func TestParseLive(t *testing.T) {
	for text, want := range map[string]float64{
		"# Sys = 1\n# HeapAlloc = 3072\n# Stack = 1024 / 2048\n": 4, "# HeapAlloc = 1\n": 0, "# Stack = 1024 / 2048\n": 0,
	} {
		if got, err := parseLive([]byte(text)); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestDelayProxy(t *testing.T) {
	t.Parallel()
	l := harness.Listen(t)
	var echoes sync.WaitGroup
	echoes.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(conn, conn)
		_ = conn.Close()
	})
	p, err := startDelayProxy(l.Addr().String(), 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", p.addr())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		begun, got := time.Now(), make([]byte, 4)
		_, err := io.WriteString(conn, "ping")
		if _, readErr := io.ReadFull(conn, got); errors.Join(err, readErr) != nil || string(got) != "ping" ||
			time.Since(begun) < 50*time.Millisecond {
			t.Errorf("%q after %v: %v, %v", got, time.Since(begun), err, readErr)
		}
	}
	if err := errors.Join(p.close(), l.Close()); err != nil {
		t.Error(err)
	}
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes", n)
	}
	_ = conn.Close()
	echoes.Wait()
}
