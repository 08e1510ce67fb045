package memcached

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// errStalled is a command that was not answered for as long as one may take.
var errStalled = errors.New("the connection stalled")

// whole is how many times as long as the next reply may take a command may wait for
// its own, however slowly those before it drip. Nobody waits for it after the first.
const whole = 2

// pipe is a connection to a server with many commands in flight. Commands that
// arrive during a write form the next write, and their replies, which come in the
// order of the commands, are read together. If no reply comes within the timeout,
// or a line is not the reply to its command, the pipe breaks.
//
// One reply too many or too few would give every later command the reply of
// another, and all of them are plain numbers. So each write ends with a check, the
// command "version", and the replies of a write are handed out when the reply to
// its check stands where it must:
//
//	written   incr a 1 | incr b 1 | version
//	replies   7        | 3        | VERSION 1.6.18   in step: a is 7, b is 3
//	replies   7        | 9        | 3                out of step: a and b are unknown
type pipe struct {
	conn     net.Conn
	timeout  time.Duration
	proved   func() // called once, after the first write that was answered in step
	answered func() // called after each
	// ended is told of the end, why, and whether a command had no reply.
	ended func(err error, unanswered bool)

	mu      sync.Mutex // guards what follows
	out     []byte     // commands that are not written yet
	spare   []byte     // room for the next ones
	writing bool       // somebody writes
	asked   []*guard   // in order: the commands whose replies were not handed out, and checks
	read    int        // asked[:read] have a reply that waits for its check
	broken  error

	proven atomic.Bool // a write was answered in step
	inStep []*guard    // commands whose replies receive hands out next; only it uses them
}

// check stands in pipe.asked for the "version" at the end of a write.
var check = new(guard)

var versionCommand = []byte("version\r\n")

// send has a command written. False: the pipe is broken, and it was not.
func (p *pipe) send(g *guard, command []byte) bool {
	p.mu.Lock()
	if p.broken != nil {
		p.mu.Unlock()
		return false
	}
	g.err, g.sent = nil, time.Now()
	g.version = bytes.Equal(command, versionCommand)
	p.out = append(p.out, command...)
	p.asked = append(p.asked, g)
	if len(p.asked) == 1 {
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
		out := append(p.out, versionCommand...)
		p.asked = append(p.asked, check)
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

// receive hands out replies until the pipe breaks.
func (p *pipe) receive() {
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

// reply takes a line as the reply to the oldest command without one, and hands the
// replies of a write out when the line is that of its check. Last says that no other
// line has arrived yet. Only receive calls it.
func (p *pipe) reply(line []byte, last bool) error {
	p.mu.Lock()
	err := p.match(line)
	if err == nil && last {
		err = p.conn.SetReadDeadline(p.due())
	}
	p.mu.Unlock()
	if len(p.inStep) == 0 {
		return err
	}
	if !p.proven.Swap(true) {
		p.proved()
	}
	p.answered()
	for i, g := range p.inStep {
		g.done <- struct{}{}
		p.inStep[i] = nil
	}
	p.inStep = p.inStep[:0]
	return err
}

// match gives a line to its command, or moves the commands before a check to
// p.inStep. The caller holds mu.
func (p *pipe) match(line []byte) error {
	if p.broken != nil {
		return p.broken
	}
	if p.read == len(p.asked) {
		return fmt.Errorf("it sent a reply without a command: %.40q", line)
	}
	g := p.asked[p.read]
	isVersion := bytes.HasPrefix(line, version)
	switch {
	case g == check && isVersion:
		p.inStep = append(p.inStep, p.asked[:p.read]...)
		left := copy(p.asked, p.asked[p.read+1:])
		clear(p.asked[left:])
		p.asked, p.read = p.asked[:left], 0
		return nil
	case g != check && (g.version == isVersion || isRefusal(line)):
		g.n = copy(g.line[:], line)
		p.read++
		return nil
	}
	return fmt.Errorf("its replies do not match the commands: %.40q", line)
}

// due returns when the next reply must be there; zero: none is expected. The caller
// holds mu.
func (p *pipe) due() (at time.Time) {
	if p.read == len(p.asked) {
		return at
	}
	at = time.Now().Add(p.timeout)
	if g := p.asked[p.read]; g != check {
		if most := g.sent.Add(whole * p.timeout); at.After(most) {
			at = most
		}
	}
	return at
}

// end breaks the pipe; again does nothing. Commands whose reply was not handed out
// get err.
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
	asked := slices.DeleteFunc(p.asked, func(g *guard) bool { return g == check })
	p.asked = nil
	p.mu.Unlock()
	p.ended(err, len(asked) > 0)
	for _, g := range asked {
		g.err = err
		g.done <- struct{}{}
	}
	_ = p.conn.Close() // last: TLS says goodbye, for seconds if the other end takes nothing
}
