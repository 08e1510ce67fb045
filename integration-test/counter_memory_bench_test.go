package integration

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// BenchmarkCounterMemory fills the service with 4 million counters whose keys have 14 bytes, and reports the resident
// memory of the whole process per counter: at once, and after 10 s, when it has returned what growing tables left. Both
// are those of the worst run. It fails if the second is more than a counter may take. The counters come over RESP, on
// connections that send 64 commands at a time; p99 is how long their replies take. It and the CPU time are medians.
func BenchmarkCounterMemory(b *testing.B) {
	for _, bench := range []struct {
		names    string
		maxBytes float64 // per counter, after 10 s.
	}{{"true", 100}, {"false", 70}} {
		b.Run("names="+bench.names, func(b *testing.B) {
			const counters = 4_000_000
			var atOnce, later, cpu, p99 []float64
			for b.Loop() {
				s := harness.NewService(b, "RESP_HOST=127.0.0.1", "RESP_PORT=0", "MEMORY_MAX_BYTES=1GiB",
					"MEMORY_COUNTER_NAMES="+bench.names)
				s.WriteRules(b, "rules.yaml",
					"domain: api\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 1000000000}}\n")
				s.Start(b)
				took := createCounters(b, s.Addrs["resp"], counters)
				atOnce = append(atOnce, float64(residentBytes(b, s.PID()))/counters)
				used, err := s.CPU()
				if err != nil {
					b.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				each := float64(residentBytes(b, s.PID())) / counters
				if each > bench.maxBytes {
					b.Errorf("a counter takes %.1f bytes, more than %v", each, bench.maxBytes)
				}
				later, cpu, p99 = append(later, each), append(cpu, used.Seconds()), append(p99, took)
				s.Stop()
			}
			b.ReportMetric(0, "ns/op") // It says nothing here.
			b.ReportMetric(slices.Max(atOnce), "B/counter-at-once")
			b.ReportMetric(slices.Max(later), "B/counter")
			b.ReportMetric(median(cpu), "cpu-s")
			b.ReportMetric(median(p99), "p99-ms")
		})
	}
}

// createCounters sends the first command of each counter, and returns the p99 of the time until the replies to 64
// commands are complete, in milliseconds.
func createCounters(b *testing.B, addr string, counters int) (p99 float64) {
	b.Helper()
	const connections, pipelined = 16, 64
	var mu sync.Mutex
	var took []float64
	var group sync.WaitGroup
	for c := range connections {
		group.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = conn.Close() }() // Nothing is on its way.
			replies := bufio.NewReader(conn)
			var commands []byte
			var mine []float64
			for first := c * pipelined; first < counters; first += connections * pipelined {
				last := min(first+pipelined, counters)
				commands = commands[:0]
				for n := first; n < last; n++ {
					commands = fmt.Appendf(commands, "*4\r\n$9\r\nRATELIMIT\r\n$3\r\napi\r\n$1\r\nk\r\n$7\r\n%07d\r\n", n)
				}
				start := time.Now()
				if err := exchange(conn, replies, commands, last-first); err != nil {
					b.Errorf("%s: %v", addr, err)
					return
				}
				mine = append(mine, time.Since(start).Seconds()*1000)
			}
			mu.Lock()
			took = append(took, mine...)
			mu.Unlock()
		})
	}
	group.Wait()
	if b.Failed() {
		b.FailNow()
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// exchange sends RATELIMIT commands and reads their replies, which are lists of five integers. The first one is 0,
// since all hits pass.
func exchange(conn net.Conn, replies *bufio.Reader, commands []byte, count int) error {
	if _, err := conn.Write(commands); err != nil {
		return err
	}
	for range count {
		for i, want := range []string{"*5\r\n", ":0\r\n", "", "", "", ""} {
			line, err := replies.ReadSlice('\n')
			if err != nil {
				return err
			}
			if want != "" && string(line) != want {
				return fmt.Errorf("line %d of a reply is %q", i, line)
			}
		}
	}
	return nil
}
