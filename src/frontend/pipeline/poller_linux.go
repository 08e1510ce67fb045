package pipeline

import (
	"cmp"
	"net"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"ratelimit/src/sockets"
)

// A connection starts with a goroutine of its own. Once it has answered firstReadsToPoll times, a poller serves it: one
// goroutine for many connections, which waits for all of them with epoll. What is unusual returns a connection to a
// goroutine of its own: the end of its input, a fault, a long request, a client that does not read, an answer that may
// wait, a long idle time, Shutdown, and closing for a new connection or for the memory budget.
//
// If an answer or its write has to wait, the goroutine of the poller becomes that of the connection, and a new one runs
// the poller.
//
// The Go scheduler finds a goroutine and a thread for each request. Without that, the command of a client that waits
// for each reply costs a fifth less CPU time. On a host without a free core, the threads that it wakes also take turns
// with the clients, which have to wait for some ms then.
const (
	firstReadsToPoll = 2
	maxReadsToPoll   = 1024
)

// pollers are the pollers of a server.
type pollers struct {
	mu  sync.Mutex
	all []*poller // nil until the first connection is polled; guarded by mu.
}

// leastBusy returns the poller with the fewest connections.
func (ps *pollers) leastBusy(s *Server) *poller {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.all == nil {
		for range s.cfg.MaxPollers {
			ps.all = append(ps.all, &poller{srv: s, conns: make(map[int32]*conn)})
		}
	}
	return slices.MinFunc(ps.all, func(a, b *poller) int { return cmp.Compare(a.numConns(), b.numConns()) })
}

// stop makes the pollers return all connections to goroutines of their own. Server.stoppingCtx must have ended.
func (ps *pollers) stop() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.all {
		p.wake()
	}
}

// poller serves connections. It has a goroutine and file descriptors while it has connections.
type poller struct {
	srv *Server

	// Only the goroutine that runs the poller uses these fields.

	events [128]unix.EpollEvent
	ready  []readyConn
	// sweptAt is when idle connections were looked for last.
	sweptAt time.Time

	// mu guards the fields below. The file descriptors do not change while there are connections. So the goroutine that
	// runs the poller reads them without mu.

	mu      sync.Mutex
	conns   map[int32]*conn // by file descriptor.
	epollFD int
	wakeFD  int // an eventfd that ends a wait.
}

// readyConn is a connection with events of epoll.
type readyConn struct {
	*conn
	events uint32
}

func (p *poller) numConns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// canBePolled reports whether a poller may serve c now.
func (c *conn) canBePolled() bool {
	return c.socket != nil && c.reads >= c.readsToPoll && c.srv.stoppingCtx.Err() == nil &&
		len(c.input.buf) == readBufferBytes && len(c.input.pending()) < readBufferBytes
}

// setSocket lets pollers serve c, if newSocket has returned s.
func (c *conn) setSocket(s net.Conn) {
	if s, ok := s.(*socket); ok && c.srv.cfg.MaxPollers > 0 {
		s.owner, c.socket, c.readsToPoll = c, s, firstReadsToPoll
	}
}

// poll lets a poller serve c, and reports whether one does. If it does, the caller must no longer use c.
func (c *conn) poll() bool {
	c.unwatchStop()
	if c.srv.pollers.leastBusy(c.srv).add(c) == nil {
		return true
	}
	c.unpoll()
	return false
}

// leavePoller makes the calling goroutine, which runs the poller of c, that of c. A new one runs the poller.
func (c *conn) leavePoller() {
	if p := c.socket.poller; p.remove(c) {
		c.srv.connGoroutines.Go(p.run)
	}
	c.unpoll()
}

// unpoll sets what the goroutine of c needs, which no poller serves any more. If the process has no file descriptor
// left, reads and writes fail.
func (c *conn) unpoll() {
	c.socket.attach()
	// A connection that leaves again and again would cost more than one that stays.
	c.reads, c.readsToPoll = 0, min(2*c.readsToPoll, maxReadsToPoll)
	c.writeDeadlineSetAt = time.Time{}
	c.applyReadDeadline()
	c.watchStop()
}

func (c *conn) isPolled() bool { return c.socket != nil && c.socket.poller != nil }

// add makes p serve c, and starts the goroutine if c is the only connection. It fails after Shutdown, if c is closed,
// and if the process has no file descriptor left.
func (p *poller) add(c *conn) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.srv.stoppingCtx.Err() != nil {
		return net.ErrClosed
	}
	isFirst := len(p.conns) == 0
	if isFirst {
		if err := p.openDescriptors(); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				p.closeDescriptors()
			}
		}()
	}
	if err := c.socket.detach(p); err != nil {
		return err
	}
	if err := p.register(c.socket.fd, unix.EPOLLIN|unix.EPOLLRDHUP); err != nil {
		return err
	}
	p.conns[int32(c.socket.fd)] = c
	if isFirst {
		p.srv.connGoroutines.Go(p.run)
	}
	return nil
}

// openDescriptors sets epollFD and wakeFD. The caller holds mu.
func (p *poller) openDescriptors() (err error) {
	if p.epollFD, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if p.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		_ = unix.Close(p.epollFD)
		return os.NewSyscallError("eventfd", err)
	}
	if err = p.register(p.wakeFD, unix.EPOLLIN); err != nil {
		p.closeDescriptors()
	}
	return err
}

// closeDescriptors closes epollFD and wakeFD, which hold no data. The caller holds mu.
func (p *poller) closeDescriptors() { _, _ = unix.Close(p.epollFD), unix.Close(p.wakeFD) }

// register makes epoll report events of a file descriptor as long as they hold. The caller holds mu.
func (p *poller) register(fd int, events uint32) error {
	event := unix.EpollEvent{Events: events, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.epollFD, unix.EPOLL_CTL_ADD, fd, &event))
}

// remove forgets c, and reports whether p has other connections. Only the goroutine that runs p calls it.
func (p *poller) remove(c *conn) (hasOthers bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = unix.EpollCtl(p.epollFD, unix.EPOLL_CTL_DEL, c.socket.fd, nil) // fails only if it is not registered.
	delete(p.conns, int32(c.socket.fd))
	if len(p.conns) == 0 {
		p.ready = nil // The caller does not use p any more.
		p.closeDescriptors()
	}
	return len(p.conns) > 0
}

// wake ends the wait of run.
func (p *poller) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) > 0 {
		one := [8]byte{1}
		_, _ = unix.Write(p.wakeFD, one[:]) // fails only if 2^64 - 2 others were not read.
	}
}

// run serves the connections until there is none, or until an answer has to wait. Then it serves only that connection.
func (p *poller) run() {
	for {
		ready, now := p.wait()
		for _, r := range ready {
			reason, stays := r.answerPolled(r.events, now)
			switch {
			case stays:
			case !r.isPolled():
				p.srv.serveConn(r.conn, func() error { return reason })
				return
			case !p.handOff(r.conn, reason):
				return
			}
		}
		for _, c := range p.sweep(now) {
			if !p.handOff(c, nil) {
				return
			}
		}
	}
}

// handOff starts a goroutine that serves c, or ends it if there is a reason. It reports whether p has other
// connections.
func (p *poller) handOff(c *conn, reason error) (hasOthers bool) {
	hasOthers = p.remove(c)
	p.srv.connGoroutines.Go(func() {
		p.srv.serveConn(c, func() error {
			c.unpoll()
			return reason
		})
	})
	return hasOthers
}

// wait waits until there are connections that have input or an end, or until a sweep is due. It returns the
// connections and the time.
func (p *poller) wait() ([]readyConn, time.Time) {
	n := p.tryWait()
	if n == 0 {
		millis := -1
		if p.srv.cfg.IdleTimeout > 0 {
			millis = int(p.sweepInterval().Milliseconds())
		}
		clear(p.ready[:cap(p.ready)])                         // A wait keeps no memory of closed connections.
		n, _ = unix.EpollWait(p.epollFD, p.events[:], millis) // fails only if a signal interrupts it.
	}
	p.ready = p.ready[:0]
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events[:max(n, 0)] {
		if c := p.conns[e.Fd]; c != nil { // It is nil for wakeFD, which stays set: sweep returns all connections then.
			p.ready = append(p.ready, readyConn{c, e.Events})
		}
	}
	return p.ready, time.Now()
}

// tryWait sets events to those that there are, and returns their number.
func (p *poller) tryWait() int {
	// SAFETY: events has room for as many events as the call is told.
	n, _, _ := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epollFD), uintptr(unsafe.Pointer(&p.events)),
		uintptr(len(p.events)), 0, 0, 0)
	return max(int(n), 0) // It is -1 if a signal interrupts the call.
}

// sweepInterval is by how much the poller may close an idle connection late.
func (p *poller) sweepInterval() time.Duration {
	return min(max(p.srv.cfg.IdleTimeout/10, 10*time.Millisecond), deadlinePrecision)
}

// sweep returns the connections that have been idle for IdleTimeout, and all after Shutdown.
func (p *poller) sweep(now time.Time) (leaving []*conn) {
	timeout, isStopping := p.srv.cfg.IdleTimeout, p.srv.stoppingCtx.Err() != nil
	if !isStopping {
		if timeout == 0 || now.Sub(p.sweptAt) < p.sweepInterval() {
			return nil
		}
		p.sweptAt = now
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		if isStopping || p.sweptAt.Sub(c.readDeadlineSetAt) >= timeout {
			leaving = append(leaving, c)
		}
	}
	return leaving
}

// answerPolled reads once, and answers the requests that are complete. stays is false if c must leave the poller, or
// has left it. Then reason is the reason to end the connection, or nil.
func (c *conn) answerPolled(events uint32, now time.Time) (reason error, stays bool) {
	if events != unix.EPOLLIN {
		return nil, false // The input or the connection has ended.
	}
	n, err := sockets.Read(c.socket.fd, c.input.freeSpace())
	if n == 0 {
		return nil, err == unix.EAGAIN
	}
	c.input.recordRead(n)
	answered, reason := c.answerInput(false)
	if answered > 0 {
		c.readDeadlineSetAt = now
	}
	return reason, reason == nil && c.isPolled() && c.canBePolled()
}
