package memcached

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"time"
)

// errStalled is a command that was not answered for as long as one may take.
var errStalled = errors.New("the connection stalled")

// whole is how many times as long as the next reply may take a command may wait for
// its own, however slowly those before it drip. Nobody waits for it after the first.
const whole = 2

// pipe is a connection to a server with many commands on their way. Those that
// come while others are being written are written together, and the replies,
// which come in the order of the commands, are read together. When none comes for
// as long as a command may take, or what comes is no reply, the pipe breaks, so
// that nobody waits for long or gets what was meant for another.
type pipe struct {
	conn     net.Conn
	timeout  time.Duration
	proved   func() // told of the first reply
	answered func() // told of each
	// ended is told of the end, why, and whether a command had no reply.
	ended func(err error, unanswered bool)

	mu      sync.Mutex // guards what follows
	out     []byte     // commands that are not written yet
	spare   []byte     // room for the next ones
	writing bool       // somebody writes
	asked   []*guard   // in order: those that wait for a reply
	next    int        // the first of them
	proven  bool
	broken  error
}

// send has a command written. False: the pipe is broken, and it was not.
func (p *pipe) send(g *guard, command []byte) bool {
	p.mu.Lock()
	if p.broken != nil {
		p.mu.Unlock()
		return false
	}
	g.err, g.sent = nil, time.Now()
	p.out = append(p.out, command...)
	p.asked = append(p.asked, g)
	if len(p.asked)-p.next == 1 {
		_ = p.conn.SetReadDeadline(g.sent.Add(p.timeout)) // a connection that has ended says so to the reader
	}
	if p.writing {
		p.mu.Unlock()
		return true
	}
	p.writing = true
	p.mu.Unlock()
	runtime.Gosched() // who is about to send, too, can be taken along
	p.write()
	return true
}

// write writes until there is nothing more.
func (p *pipe) write() {
	for {
		p.mu.Lock()
		if len(p.out) == 0 || p.broken != nil {
			p.writing = false
			p.mu.Unlock()
			return
		}
		out := p.out
		p.out = p.spare[:0]
		p.mu.Unlock()
		err := p.conn.SetWriteDeadline(time.Now().Add(p.timeout))
		if err == nil {
			_, err = p.conn.Write(out)
		}
		p.mu.Lock()
		p.spare = out
		p.mu.Unlock()
		if err != nil {
			p.end(err)
		}
	}
}

// read hands out replies until the pipe breaks.
func (p *pipe) read() {
	in := bufio.NewReaderSize(p.conn, 16<<10)
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case err == nil && bytes.HasPrefix(line, plainError): // another protocol, or too many connections
			err = replyError(line)
		case errors.Is(err, bufio.ErrBufferFull), err == nil && (len(line) > maxReply || !isReply(line)):
			err = fmt.Errorf("it does not speak as Memcached does: %.40q", line)
		case err == nil:
			err = p.reply(line, in.Buffered() == 0)
		}
		if err != nil {
			p.end(err)
			return
		}
	}
}

// reply gives a line to whoever waits for it. Last says that no other is there
// yet.
func (p *pipe) reply(line []byte, last bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return p.broken
	}
	if left := len(p.asked) - p.next; left == 0 || left == 1 && !last {
		return fmt.Errorf("it answers what nobody asked, after %.40q", line)
	}
	g := p.asked[p.next]
	p.asked[p.next] = nil
	p.next++
	if p.next == len(p.asked) {
		p.asked, p.next = p.asked[:0], 0
	} else if p.next >= 1024 && 2*p.next >= len(p.asked) {
		p.asked, p.next = p.asked[:copy(p.asked, p.asked[p.next:])], 0
	}
	if !p.proven {
		p.proven = true
		p.proved()
	}
	p.answered()
	g.n = copy(g.line[:], line)
	g.done <- struct{}{}
	if !last {
		return nil
	}
	var due time.Time // none
	if p.next < len(p.asked) {
		due = time.Now().Add(p.timeout)
		if most := p.asked[p.next].sent.Add(whole * p.timeout); due.After(most) {
			due = most
		}
	}
	return p.conn.SetReadDeadline(due)
}

// end breaks the pipe; again does nothing. All that have no reply get err.
func (p *pipe) end(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: no answer for %v", errStalled, p.timeout)
	}
	p.mu.Lock()
	if p.broken != nil {
		p.mu.Unlock()
		return
	}
	p.broken = err
	asked := p.asked[p.next:]
	p.mu.Unlock()
	p.ended(err, len(asked) > 0)
	for _, g := range asked {
		g.err = err
		g.done <- struct{}{}
	}
	_ = p.conn.Close() // last: TLS says goodbye, for seconds if the other end takes nothing
}
