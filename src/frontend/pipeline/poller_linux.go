package pipeline

import (
	"cmp"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A connection starts with a goroutine of its own. Once it has answered readsBeforePolling times, a poller serves it:
// one goroutine for many connections, which waits for all of them with epoll. Whatever is unusual returns a connection
// to a goroutine of its own: the end of its input, a fault, a long request, a client that does not read, a long idle
// time and Shutdown.
//
// If the unusual is found while the poller answers a request, there is no need to tell another goroutine about it: the
// goroutine of the poller becomes that of the connection, and a new one runs the poller.
//
// A poller answers a client that waits for each reply with a third less of the CPU time of goroutines, because the Go
// scheduler need not find a goroutine and a thread for each request. On a host without a free core it also delays
// others less: a thread that becomes busy for each request takes turns with the clients.
const readsBeforePolling = 2

// pollers are the pollers of a server, one for each two cores: the others are for what else the process does.
type pollers struct {
	mu  sync.Mutex
	all []*poller // nil until the first connection is polled; guarded by mu.
}

// leastBusy returns the poller with the fewest connections.
func (ps *pollers) leastBusy(s *Server) *poller {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.all == nil {
		for range max(1, runtime.GOMAXPROCS(0)/2) { // It may have become 1.
			ps.all = append(ps.all, &poller{srv: s, conns: make(map[int32]*conn)})
		}
	}
	return slices.MinFunc(ps.all, func(a, b *poller) int { return cmp.Compare(a.open(), b.open()) })
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

	events  [128]unix.EpollEvent
	ready   []readyConn
	leaving []*conn // those that must leave before further events are read.
	sweptAt time.Time

	// mu guards the fields below. The file descriptors do not change while there are connections. So the goroutine that runs
	// the poller reads them without mu.

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

func (p *poller) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// canBePolled reports whether a poller may serve c now.
func (c *conn) canBePolled() bool {
	return c.socket != nil && !c.srv.cfg.AnswersWait && c.reads >= readsBeforePolling &&
		len(c.input.buf) == readBufferBytes && len(c.input.pending()) < readBufferBytes
}

// poll lets a poller serve c, and reports whether one does. If it does, the caller must no longer use c.
func (c *conn) poll() bool {
	c.unwatchStop()
	p := c.srv.pollers.leastBusy(c.srv)
	err := c.socket.detach(p)
	if err == nil {
		if err = p.add(c); err != nil {
			c.socket.attach()
		}
	}
	if err != nil {
		c.startOwnGoroutine()
	}
	return err == nil
}

// leavePoller makes the calling goroutine, which runs the poller of c, that of c. A new one runs the poller.
func (c *conn) leavePoller() {
	p := c.socket.poller
	p.mu.Lock()
	_ = unix.EpollCtl(p.epollFD, unix.EPOLL_CTL_DEL, c.socket.fd, nil) // fails only if it is not registered.
	p.remove(c)
	hasOthers := len(p.conns) > 0
	p.mu.Unlock()
	c.socket.attach()
	c.startOwnGoroutine()
	if hasOthers {
		c.srv.connGoroutines.Go(p.run)
	}
}

// startOwnGoroutine sets what the goroutine of an unpolled connection needs.
func (c *conn) startOwnGoroutine() {
	c.reads, c.writeDeadlineSetAt = 0, time.Time{}
	c.applyReadDeadline()
	c.watchStop()
}

// setSocket lets pollers serve c, if newSocket has returned s. A poller can keep a core busy, so there is none if the
// process has one core: connections of other ports would wait for milliseconds.
func (c *conn) setSocket(s net.Conn) {
	if s, ok := s.(*socket); ok && runtime.GOMAXPROCS(0) > 1 {
		s.owner, c.socket = c, s
	}
}

func (c *conn) isPolled() bool { return c.socket != nil && c.socket.poller != nil }

// add adds c, and starts the goroutine if c is the only connection. It fails after Shutdown and if the process has no
// file descriptor left.
func (p *poller) add(c *conn) error {
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
	}
	p.conns[int32(c.socket.fd)] = c
	if err := p.register(c.socket.fd, unix.EPOLLIN|unix.EPOLLRDHUP); err != nil {
		p.remove(c)
		return err
	}
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

// remove forgets c. The caller holds mu. If c is not the only connection, it runs the poller.
func (p *poller) remove(c *conn) {
	delete(p.conns, int32(c.socket.fd))
	if len(p.conns) == 0 {
		p.ready = nil
		p.closeDescriptors()
	}
}

// wake ends the wait of run.
func (p *poller) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) > 0 {
		one := [8]byte{1}
		_, _ = unix.Write(p.wakeFD, one[:]) // fails only if the event is already set.
	}
}

// run serves the connections until one of them leaves, and then that one.
func (p *poller) run() {
	c, reason := p.serveUntilOneLeaves()
	c.srv.serveConn(c, reason)
}

// serveUntilOneLeaves answers requests. It returns the first connection that leaves the poller, and the reason to end
// it, if there is one. The caller must not use p after that.
func (p *poller) serveUntilOneLeaves() (c *conn, reason error) {
	for {
		p.sweep()
		if n := len(p.leaving); n > 0 {
			c, p.leaving[n-1] = p.leaving[n-1], nil
			p.leaving = p.leaving[:n-1]
			c.leavePoller()
			return c, nil
		}
		now := p.wait()
		for _, r := range p.ready {
			if reason, stays := r.answerPolled(r.events, now); !stays {
				if r.isPolled() {
					r.leavePoller()
				}
				return r.conn, reason
			}
		}
	}
}

// wait sets ready to the connections that have input or an end. It returns the time after that.
func (p *poller) wait() time.Time {
	n := p.tryWait()
	if n == 0 {
		millis := -1
		if p.srv.cfg.IdleTimeout > 0 {
			millis = int(p.sweepInterval().Milliseconds())
		}
		clear(p.ready[:cap(p.ready)]) // A wait keeps no memory of closed connections.
		n, _ = unix.EpollWait(p.epollFD, p.events[:], millis) // fails only if a signal interrupts it.
	}
	p.ready = p.ready[:0]
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events[:max(n, 0)] {
		if c := p.conns[e.Fd]; c != nil { // It is nil for wakeFD.
			p.ready = append(p.ready, readyConn{c, e.Events})
		}
	}
	return time.Now()
}

// tryWait sets events to those that there are, and returns their number.
func (p *poller) tryWait() int {
	// SAFETY: events has room for as many events as the call is told.
	n, _, _ := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epollFD), uintptr(unsafe.Pointer(&p.events)),
		uintptr(len(p.events)), 0, 0, 0)
	return max(int(n), 0) // It is -1 if a signal interrupts the call.
}

// tryIO reads into b or writes b, as call says, without waiting. It does not tell the Go scheduler, as unix.Read does:
// then sysmon, a thread of the scheduler, would wake a thousand times a second to see whether the call waits.
func tryIO(call uintptr, fd int, b []byte) (int, error) {
	// SAFETY: the call accesses len(b) bytes of b, and b is alive until it returns.
	n, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// sweepInterval is by how much the poller may close an idle connection late.
func (p *poller) sweepInterval() time.Duration {
	return min(max(p.srv.cfg.IdleTimeout/10, 10*time.Millisecond), deadlinePrecision)
}

// sweep sets leaving to the connections that have been idle for IdleTimeout, and to all after Shutdown.
func (p *poller) sweep() {
	timeout, isStopping := p.srv.cfg.IdleTimeout, p.srv.stoppingCtx.Err() != nil
	if len(p.leaving) > 0 || !isStopping && timeout == 0 {
		return
	}
	now := time.Now()
	if !isStopping && now.Sub(p.sweptAt) < p.sweepInterval() {
		return
	}
	p.sweptAt = now
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		if isStopping || now.Sub(c.readDeadlineSetAt) >= timeout {
			p.leaving = append(p.leaving, c)
		}
	}
}

// answerPolled reads once, and answers the requests that are complete. stays is false if c must leave the poller, or has
// left it. Then reason is the reason to end the connection, or nil.
func (c *conn) answerPolled(events uint32, now time.Time) (reason error, stays bool) {
	if events != unix.EPOLLIN {
		return nil, false // The input or the connection has ended.
	}
	n, err := tryIO(unix.SYS_READ, c.socket.fd, c.input.freeSpace())
	if n <= 0 {
		return nil, err == unix.EAGAIN || err == unix.EINTR
	}
	c.input.recordRead(n)
	answered, reason := c.answerInput(false)
	if answered > 0 {
		c.readDeadlineSetAt = now
	}
	return reason, reason == nil && c.isPolled() && c.canBePolled()
}
