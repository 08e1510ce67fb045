//go:build linux

package siege

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Attacks on the port for clients of Redis.
var respAttacks = []attack{
	{
		letter: "D", name: "replies over RESP that are not read",
		does: "pipelines of commands, whose replies are up to 90 times as long, over sockets that are never " +
			"read",
		env: []string{"MAX_BUFFERED_BYTES=16777216"}, strike: respUnread,
	},
	{
		letter: "D", name: "commands over RESP without an end",
		does:   "commands of `RESP_MAX_COMMAND_BYTES` that lack their last byte, on 1,200 connections",
		strike: respHalves,
	},
	{
		letter: "K", name: "malformed commands over RESP",
		does: "arrays of 2^31 arguments, strings of 2^63 bytes, garbage, deep arrays, one byte at a time, " +
			"again and again on new connections",
		strike: respGarbage,
	},
	{
		letter: "D", name: "a full port of RESP",
		does: "idle connections up to `RESP_MAX_CONNECTIONS`; newcomers are served all the same",
		env:  []string{"RESP_MAX_CONNECTIONS=100"}, quiet: true, strike: respCrowd,
	},
}

// array is a command as clients of Redis send it.
func array(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b.String()
}

// respUnread sends commands until the service takes no more, on each connection.
func respUnread(x *trial) {
	idle := fillPort(x.service.resp, pick(x, 50, 100))
	defer leave(idle)
	pipeline := strings.Repeat(array("RATELIMIT", "siege", "neighbour", "x")+array("CL.THROTTLE", "x", "1", "1",
		"1")+array("COMMAND"), 200)
	var sent, stuck atomic.Int64
	var all sync.WaitGroup
	for _, c := range idle {
		all.Go(func() {
			_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
			_ = c.(*net.TCPConn).SetWriteBuffer(4 << 10)
			_ = c.SetWriteDeadline(time.Now().Add(pick(x, 500*time.Millisecond, 15*time.Second)))
			for {
				n, err := io.WriteString(c, pipeline)
				sent.Add(int64(n))
				if err != nil {
					stuck.Add(1)
					return
				}
			}
		})
	}
	all.Wait()
	x.note("%d MiB of commands were sent, then %d of %d connections took no more", sent.Load()>>20, stuck.Load(),
		len(idle))
}

// respHalves leaves commands unfinished.
func respHalves(x *trial) {
	idle := fillPort(x.service.resp, pick(x, 350, 1200))
	defer leave(idle)
	const size = 1<<20 - 64
	half := fmt.Sprintf("*2\r\n$4\r\nECHO\r\n$%d\r\n%s", size, strings.Repeat("a", size-1))
	taken := sendAll(idle, half)
	x.awaitSample()
	x.note("%d of %d halves of commands were sent", taken, len(idle))
}

// respGarbage sends what is no command, each time on a new connection, which must get an error or an answer.
func respGarbage(x *trial) {
	inputs := []string{
		"*2147483648\r\n", "*-9223372036854775808\r\n", "*1\r\n$9223372036854775807\r\n", "*1\r\n$-5\r\n",
		strings.Repeat("*1\r\n", 1000),
		strings.Repeat("\x00\xff", 40<<10), "POST / HTTP/1.1\r\n", "\"unbalanced\r\n",
		array(strings.Split(strings.Repeat("a ", 2048), " ")...),
	}
	end := time.Now().Add(pick(x, 500*time.Millisecond, 10*time.Second))
	var answered, silent atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				if err := x.sendOnce(inputs[n%len(inputs)], n%3 == 0); err != nil {
					silent.Add(1)
					x.suspect("%.20q: %v", inputs[n%len(inputs)], err)
				} else {
					answered.Add(1)
				}
			}
		})
	}
	all.Wait()
	x.note("%d malformed commands were answered, %d not", answered.Load(), silent.Load())
}

// sendOnce sends text on a new connection, its first bytes one at a time if bytewise is set, and waits for an error
// reply.
func (x *trial) sendOnce(text string, bytewise bool) error {
	c, err := net.DialTimeout("tcp", x.service.resp, x.deadline)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(2 * x.deadline))
	for bytewise && len(text) > 1 && len(text) < 64 {
		if _, err := io.WriteString(c, text[:1]); err != nil {
			break // The error reply may be there already.
		}
		text = text[1:]
	}
	_, _ = io.WriteString(c, text) // It fails if the service has answered before the end.
	reply := make([]byte, 1)
	if _, err := io.ReadFull(c, reply); err != nil {
		return err
	}
	if reply[0] != '-' {
		return errors.New("it is no error")
	}
	return nil
}

func respCrowd(x *trial) {
	idle := fillPort(x.service.resp, 150)
	defer leave(idle)
	served := 0
	for range 10 {
		if err := x.sendOnce(array("NONE"), false); err == nil {
			served++
		}
	}
	if served < 10 {
		x.suspect("%d of 10 newcomers were served", served)
	}
	x.note("%d of 10 newcomers were served", served)
}
