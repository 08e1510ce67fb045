//go:build linux

package siege

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// Attacks on what a connection of HTTP/2 can make the service keep without a call.
var wireAttacks = []attack{
	{
		letter: "D", name: "lists of references",
		does:   "3,500 connections that each leave one block of headers, whose 1,900 bytes refer to one field",
		strike: referenceLists,
	},
	{
		letter: "D", name: "bodies in small frames",
		does: "streams of other methods whose messages arrive in frames of 64 bytes and never end: 50 MB over " +
			"8 connections",
		strike: smallFrames,
	},
	{
		letter: "D", name: "requests of many fields",
		does: "calls of 95 header fields without a message, 100 over each of 60 connections, and as many " +
			"without fields",
		strike: manyFields,
	},
	{
		letter: "K", name: "rapid resets on Redis",
		does:  "calls that are taken back at once while Redis decides them, over 2 to 16 connections",
		store: redis, strike: resetsOnRedis,
	},
}

func referenceLists(x *trial) {
	list := x.wires(pick(x, 400, 3500), true)
	defer hangUp(list)
	var closed atomic.Int64
	together(list, func(_ int, w *wire) {
		w.head.Reset()
		// Literal with indexing: "a" with a long value is entry 62 then.
		block := append([]byte{0x40, 1, 'a', 0x7f, 0x81, 0x07}, strings.Repeat("y", 1024)...)
		block = append(block, slices.Repeat([]byte{0xbe}, 1900)...)
		err := w.write(func() error {
			return w.f.WriteHeaders(http2.HeadersFrameParam{
				StreamID: 1, BlockFragment: block, EndHeaders: true,
				EndStream: true,
			})
		})
		if err != nil || w.ping() != nil {
			closed.Add(1)
		}
	})
	x.awaitSample()
	x.note("%d connections, of which %d were closed", len(list), closed.Load())
}

func smallFrames(x *trial) {
	list := x.wires(8, true)
	defer hangUp(list)
	x.endSoon(list)
	each := pick(x, 1<<20, 6<<20)
	var sent, closed atomic.Int64
	together(list, func(_ int, w *wire) {
		// 64 bytes are the least that is no waste, which would end the connection.
		part := message(false, make([]byte, 60<<10))[:64]
		for n := 0; n < each; n += 50 << 10 {
			stream, err := w.open(checkHealth)
			for m := 0; err == nil && m < 50<<10; m += len(part) {
				err = w.data(stream, part, false)
				sent.Add(int64(len(part)))
			}
			if err != nil {
				closed.Add(1)
				return
			}
		}
	})
	x.awaitSample()
	x.note("%d MiB were sent, %d of %d connections were closed for it", sent.Load()>>20, closed.Load(), len(list))
}

func manyFields(x *trial) {
	list := x.wires(60, true)
	defer hangUp(list)
	x.endSoon(list)
	var sent, closed atomic.Int64
	together(list, func(i int, w *wire) {
		fields := slices.Repeat([]string{"a", "b"}, 90)
		if i%2 == 0 {
			fields = nil
		}
		for range 100 {
			if _, err := w.open(checkHealth, fields...); err != nil {
				closed.Add(1)
				return
			}
			sent.Add(1)
		}
	})
	x.awaitSample()
	x.note("%d calls were begun, %d of %d connections were closed for it", sent.Load(), closed.Load(), len(list))
}

// resetsOnRedis compares how the neighbour is served while different numbers of connections take back their calls.
func resetsOnRedis(x *trial) {
	counts := []int{8}
	if x.full {
		counts = []int{2, 8, 16}
	}
	for _, n := range counts {
		begun := time.Now()
		sent, closed, err := x.resetsApart(n, pick(x, 2*time.Second, 8*time.Second))
		if err != nil {
			x.suspect("%v", err)
		}
		q := x.neighbour.between(begun, time.Now())
		x.note("%d connections: %d resets, %d times closed for it; the neighbour's p99 %v, %d of %d failed", n, sent, closed,
			q.p99.Round(time.Millisecond/10), q.failed, q.calls)
		if most := 10 * time.Millisecond; x.full && q.p99 > most {
			x.suspect("with %d connections the neighbour's p99 is %v, want at most %v", n, q.p99, most)
		}
		if x.full && float64(q.failed) > x.mostFailed*float64(q.calls) {
			x.suspect("with %d connections %d of the neighbour's %d calls failed", n, q.failed, q.calls)
		}
	}
}

// resetsVariable makes this program take back calls: the address, the number of connections, and how long.
const resetsVariable = "SIEGE_RESETS"

// resetsApart takes back calls from a process with the lowest priority, since attackers have machines of their own: as
// many resets as they can send take all the time of this one.
func (x *trial) resetsApart(n int, length time.Duration) (sent, closed int64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, 0, err
	}
	cmd := exec.CommandContext(x.ctx, "nice", "-n", "19", self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %v", resetsVariable, x.service.grpc, n, length))
	output, err := cmd.CombinedOutput()
	if err == nil {
		_, err = fmt.Sscan(string(output), &sent, &closed)
	}
	if err != nil {
		err = fmt.Errorf("the attacker: %w: %.300s", err, output)
	}
	return sent, closed, err
}

// takeBackCalls is the process of resetsApart.
func takeBackCalls(order string) error {
	addr, n, text := "", 0, ""
	if _, err := fmt.Sscan(order, &addr, &n, &text); err != nil {
		return err
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	x := &trial{ctx: context.Background(), service: &service{grpc: addr}, result: &result{}}
	_, err = fmt.Println(x.resets(n, 1<<30, time.Now().Add(length)))
	return err
}
