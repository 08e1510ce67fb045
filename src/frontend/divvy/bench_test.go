package divvy

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/harness"
)

// benchServer names the variable that makes this test binary a server to
// measure: "divvy" or "echo".
const benchServer = "DIVVY_BENCH_SERVER"

// used is what a server has used so far.
type used struct{ cpu, mallocs uint64 } // ns

// serveBench is the server's process. It says where it listens, and for each line
// on stdin what it has used.
func serveBench(kind string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	serve := serveEcho
	if kind == "divvy" {
		store, err := memory.New(memory.Config{})
		if err != nil {
			return err
		}
		counters := metrics.New(metrics.Config{})
		lim := limiter.New(limiter.Config{Backend: store, Recorders: []limiter.Recorder{counters}})
		text := strings.ReplaceAll(kitchen, "requests_per_unit: 2}", "requests_per_unit: 1000000000}")
		set, _, err := filerules.Load([]filerules.File{{Name: "kitchen.yaml", Data: []byte(text)}}, compile.Options{})
		if err != nil {
			return err
		}
		counters.UseRules(set)
		lim.UseRules(set)
		latency := new(metrics.Histogram)
		cfg := Config{Limiter: lim, Domain: "kitchen"}
		cfg.OnDecisions = latency.ObserveMany
		s, err := New(cfg)
		if err != nil {
			return err
		}
		serve = s.Serve
	}
	go func() { _ = serve(l) }() // until the process ends
	fmt.Println(l.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		used, err := harness.CPUTime()
		if err != nil {
			return err
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fmt.Println(used.Nanoseconds(), m.Mallocs)
	}
	return nil
}

// serveEcho sends back what it reads, with a buffer like ours.
func serveEcho(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			buf := make([]byte, 4<<10)
			for {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				if _, err := c.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
	}
}

// bench is a server in a process of its own.
type bench struct {
	b    *testing.B
	addr string
	in   io.WriteCloser
	out  *bufio.Reader
}

func startBench(b *testing.B, kind string) *bench {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchServer+"="+kind, "GOGC=400")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	s := &bench{b: b, in: in, out: bufio.NewReader(out)}
	b.Cleanup(func() {
		_ = in.Close() // it ends then
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	if _, err := fmt.Fscanln(s.out, &s.addr); err != nil {
		b.Fatal(err)
	}
	return s
}

func (s *bench) used() (u used) {
	if _, err := fmt.Fprintln(s.in); err != nil {
		s.b.Fatal(err)
	}
	if _, err := fmt.Fscanln(s.out, &u.cpu, &u.mallocs); err != nil {
		s.b.Fatal(err)
	}
	return u
}

// ask sends lines on four connections, so many at a time on each, and returns
// what the server has used for it.
func (s *bench) ask(lines, depth int) used {
	const conns = 4
	before := s.used()
	var wg sync.WaitGroup
	for i := range conns {
		c := dial(s.b, s.addr)
		if err := c.SetDeadline(time.Time{}); err != nil {
			s.b.Fatal(err)
		}
		wg.Go(func() {
			defer func() { _ = c.Close() }()
			var burst []byte
			for j := range depth {
				burst = fmt.Appendf(burst, "HIT \"ip\"=\"10.0.%d.%d\"\n", i, j)
			}
			in := make([]byte, 64<<10)
			for range lines / depth / conns {
				if _, err := c.Write(burst); err != nil {
					s.b.Error(err)
					return
				}
				for missing := depth; missing > 0; {
					n, err := c.Read(in)
					if err != nil {
						s.b.Error(err)
						return
					}
					missing -= bytes.Count(in[:n], []byte("\n"))
				}
			}
		})
	}
	wg.Wait()
	after := s.used()
	return used{after.cpu - before.cpu, after.mallocs - before.mallocs}
}

// BenchmarkAgainstEcho compares the server with one that sends back what it reads,
// over loopback, in one interleaved run. The figures are the CPU time of the
// server's process for a HIT and for an echoed line, in ns, their ratio, what a
// core could answer in a second, and allocations. See `make bench-divvy`.
func BenchmarkAgainstEcho(b *testing.B) {
	for _, depth := range []int{1, 8, 64, 128} {
		b.Run(fmt.Sprintf("pipelined=%d", depth), func(b *testing.B) {
			ours, echo := startBench(b, "divvy"), startBench(b, "echo")
			lines := 50_000 * min(depth, 20)
			for b.Loop() {
				ours.ask(lines/4, depth) // warm up
				echo.ask(lines/4, depth)
				var us, them used
				for range 5 {
					u, t := ours.ask(lines, depth), echo.ask(lines, depth)
					us.cpu, us.mallocs, them.cpu = us.cpu+u.cpu, us.mallocs+u.mallocs, them.cpu+t.cpu
				}
				hits := float64(5 * lines)
				b.ReportMetric(float64(us.cpu)/hits, "cpu-ns/HIT")
				b.ReportMetric(float64(them.cpu)/hits, "echo-cpu-ns/line")
				b.ReportMetric(float64(us.cpu)/float64(cmp.Or(them.cpu, 1)), "ratio")
				b.ReportMetric(1e9*hits/float64(us.cpu), "HIT/s/core")
				b.ReportMetric(float64(us.mallocs)/hits, "allocs/HIT")
				b.ReportMetric(0, "ns/op") // means nothing here
			}
		})
	}
}
