package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy passes connections on to a server until a test tells it to break them. It has one fault at a time, for open
// connections and for new ones.
//
// A connection that lost bytes to a fault stays broken after Heal, because its two ends would not agree on which reply
// belongs to which request.
type Proxy struct {
	Addr string // "127.0.0.1:port"; Refuse and Heal do not change it

	t          testing.TB
	ctx        context.Context // ends with the test
	goroutines sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	settings settings
	changed  chan struct{} // a change of settings closes and replaces this channel
	listener net.Listener  // nil while the port is closed
	links    map[*link]struct{}
}

// settings say what a Proxy does with the bytes of its connections.
type settings struct {
	target    string
	fault     fault
	latency   time.Duration // the least delay of a reply
	jitter    time.Duration // the most that is added to latency, at random
	dripPause time.Duration // the pause between two bytes of a reply, for the fault drip
	edit      *edit         // the edit of one reply of each connection, or nil
}

type fault int

const (
	noFault fault = iota
	blackhole
	dropReplies
	garbage
	hold
	drip
	cut
)

// edit is what EditReply was called with.
type edit struct {
	change func(reply []byte) (now, later []byte)
	pause  time.Duration
}

// StartProxy passes connections to its Addr on to target, an address or the path of a Unix socket. Nothing needs to
// listen there yet.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	return StartProxyAt(t, "", target)
}

// StartProxyAt is StartProxy with a given Addr. An empty Addr is replaced by a free port of 127.0.0.1.
func StartProxyAt(t testing.TB, addr, target string) *Proxy {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		Addr: addr, t: t, ctx: ctx,
		settings: settings{target: target}, links: make(map[*link]struct{}), changed: make(chan struct{}),
	}
	t.Cleanup(func() {
		cancel()
		p.Refuse()
		p.Reset()
		p.goroutines.Wait()
	})
	err := Retry(Deadline, func() error {
		if addr == "" {
			port, err := FreePort()
			if err != nil {
				return err
			}
			p.Addr = fmt.Sprintf("127.0.0.1:%d", port)
		}
		return p.listen()
	})
	if err != nil {
		t.Fatalf("harness: proxy: %v", err)
	}
	return p
}

// listen opens the port.
func (p *Proxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.ctx.Err() != nil {
		return nil
	}
	l, err := net.Listen("tcp", p.Addr)
	if err != nil {
		return err
	}
	p.listener = l
	p.goroutines.Go(func() { p.accept(l) })
	return nil
}

// accept returns after l was closed.
func (p *Proxy) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		n := &link{p: p, client: conn.(*net.TCPConn)}
		n.ctx, n.cancel = context.WithCancel(p.ctx)
		p.mu.Lock()
		p.links[n] = struct{}{}
		p.mu.Unlock()
		if p.ctx.Err() != nil {
			n.close(true) // the cleanup may have looked for links before this one was there
		}
		p.goroutines.Go(n.run)
	}
}

func (p *Proxy) changeSettings(f func(*settings)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.settings)
	close(p.changed)
	p.changed = make(chan struct{})
}

// current returns the settings, and a channel that is closed when they change.
func (p *Proxy) current() (settings, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings, p.changed
}

func (p *Proxy) setFault(f fault) { p.changeSettings(func(s *settings) { s.fault = f }) }

// SetTarget passes new connections on to another target.
func (p *Proxy) SetTarget(target string) { p.changeSettings(func(s *settings) { s.target = target }) }

// Blackhole accepts connections and discards all bytes, both ways.
func (p *Proxy) Blackhole() { p.setFault(blackhole) }

// DropReplies passes requests on and discards the replies.
func (p *Proxy) DropReplies() { p.setFault(dropReplies) }

// Garbage passes requests on and replies with bytes that no server sends.
func (p *Proxy) Garbage() { p.setFault(garbage) }

// Hold keeps all bytes, both ways, until Heal delivers them, as after a short failure of a network.
func (p *Proxy) Hold() { p.setFault(hold) }

// Cut delivers the first half of a reply, and ends the connection there.
func (p *Proxy) Cut() { p.setFault(cut) }

// Drip delivers replies byte by byte, with a pause between two bytes. No byte is lost.
func (p *Proxy) Drip(pause time.Duration) {
	p.changeSettings(func(s *settings) { s.fault, s.dripPause = drip, pause })
}

// Silence makes the open connections black holes for the rest of their lives, as if a firewall between the two ends had
// forgotten them. New connections work.
func (p *Proxy) Silence() {
	for _, n := range p.openLinks() {
		n.setLastingFault(blackhole)
	}
}

// EditReply gives one reply of each connection, open or new, to change. now is delivered in place of the reply, and
// later after the pause. Heal ends it.
func (p *Proxy) EditReply(pause time.Duration, change func(reply []byte) (now, later []byte)) {
	p.changeSettings(func(s *settings) { s.edit = &edit{change, pause} })
}

// SendToClients sends bytes at once to the clients of all open connections. It must not be called while a reply is on
// its way.
func (p *Proxy) SendToClients(content string) {
	for _, n := range p.openLinks() {
		_, _ = n.client.Write([]byte(content)) // Write fails if the client has left
	}
}

// Latency delays every reply by d, with any fault, until Heal or Latency(0). Replies do not wait for each other.
func (p *Proxy) Latency(d time.Duration) { p.Jitter(d, d) }

// Jitter delays each reply by a random time between low and high, as Latency does. Replies stay in order.
func (p *Proxy) Jitter(low, high time.Duration) {
	p.changeSettings(func(s *settings) { s.latency, s.jitter = low, high-low })
}

// Refuse closes the port. Open connections stay.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return
	}
	if err := p.listener.Close(); err != nil {
		p.t.Errorf("harness: proxy: %v", err)
	}
	p.listener = nil
}

// Heal ends all faults and opens the port again.
func (p *Proxy) Heal() {
	p.changeSettings(func(s *settings) { *s = settings{target: s.target} })
	if err := Retry(Deadline, p.listen); err != nil {
		p.t.Errorf("harness: proxy: %v", err)
	}
}

// Reset ends all connections with a RST. The port stays open.
func (p *Proxy) Reset() {
	for _, n := range p.openLinks() {
		n.close(true)
	}
}

// HalfClose ends the replies of all open connections with a FIN, and still passes on what the clients send. New
// connections work.
func (p *Proxy) HalfClose() {
	for _, n := range p.openLinks() {
		n.setLastingFault(dropReplies)
		_ = n.client.CloseWrite()
	}
}

func (p *Proxy) openLinks() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.links))
}

// Open returns the number of open connections.
func (p *Proxy) Open() int { return len(p.openLinks()) }

// link is one client's connection to a Proxy, with the proxy's own connection to the target.
type link struct {
	p            *Proxy
	client       *net.TCPConn
	ctx          context.Context // ends with the link
	cancel       context.CancelFunc
	lastingFault atomic.Int32 // the fault that the link keeps after Heal, because it lost bytes to it; or none
	lastEdit     *edit        // the last edit that changed a reply; only the goroutine that relays replies uses it
}

// close ends both connections; with reset, the client gets a RST. Further calls have no effect.
func (n *link) close(reset bool) {
	n.cancel()
	if reset {
		_ = n.client.SetLinger(0)
	}
	_ = n.client.Close()
}

// run connects to the target and relays bytes until the link ends.
func (n *link) run() {
	defer func() {
		n.p.mu.Lock()
		defer n.p.mu.Unlock()
		delete(n.p.links, n)
	}()
	set, _ := n.p.current()
	server, err := new(net.Dialer).DialContext(n.ctx, Network(set.target), set.target)
	if err != nil {
		if n.settings().fault == blackhole {
			_, _ = io.Copy(io.Discard, n.client) // Copy returns when the client or Reset ends the link
		}
		n.close(true)
		return
	}
	closeServer := sync.OnceFunc(func() { _ = server.Close() })
	defer closeServer()
	defer context.AfterFunc(n.ctx, closeServer)()
	var both sync.WaitGroup
	both.Go(func() { n.relay(n.client, server, false) })
	both.Go(func() { n.relay(server, n.client, true) })
	both.Wait()
	n.close(false)
}

// settings returns the proxy's settings with the lasting fault of this link. It waits until the fault hold is over.
func (n *link) settings() settings {
	for {
		set, changed := n.p.current()
		if set.fault = cmp.Or(fault(n.lastingFault.Load()), set.fault); set.fault != hold {
			return set
		}
		select {
		case <-changed:
		case <-n.ctx.Done():
			return settings{fault: blackhole}
		}
	}
}

// setLastingFault makes f last as long as the link, unless another fault does already.
func (n *link) setLastingFault(f fault) { n.lastingFault.CompareAndSwap(int32(noFault), int32(f)) }

// chunk is bytes to deliver: not before the instant due, and after a pause that starts when the chunk before is
// delivered.
type chunk struct {
	bytes []byte
	due   time.Time
	pause time.Duration
}

// relay copies bytes from one side to the other, through the faults, until one side ends or fails. replies says that
// from is the target.
func (n *link) relay(from, to net.Conn, replies bool) {
	chunks := make(chan chunk, 1024) // the reader does not wait for delayed chunks, so latency costs no throughput
	var delivery sync.WaitGroup
	delivery.Go(func() { n.deliver(chunks, to) })
	buffer := make([]byte, 64<<10)
	var err error
	for err == nil {
		var size int
		if size, err = from.Read(buffer); size == 0 {
			continue
		}
		content, set := bytes.Clone(buffer[:size]), n.settings()
		if !replies && set.fault != blackhole {
			set = settings{}
		}
		due := time.Now().Add(set.latency)
		if set.jitter > 0 {
			due = due.Add(rand.N(set.jitter))
		}
		put := func(content []byte, pause time.Duration) {
			select {
			case chunks <- chunk{content, due, pause}:
			case <-n.ctx.Done():
			}
		}
		switch set.fault {
		case blackhole, dropReplies:
			n.setLastingFault(set.fault)
		case garbage:
			n.setLastingFault(garbage)
			put([]byte("\x00?!\r\n"), 0)
		case cut:
			put(content[:size/2], 0)
			n.setLastingFault(cut)
			err = io.EOF
		case drip:
			for _, b := range content {
				set, _ := n.p.current() // Heal sets dripPause to 0
				put([]byte{b}, set.dripPause)
			}
		default:
			if e := set.edit; e != nil && e != n.lastEdit {
				n.lastEdit = e
				now, later := e.change(content)
				put(now, 0)
				put(later, e.pause)
			} else {
				put(content, 0)
			}
		}
	}
	close(chunks)
	delivery.Wait()
	switch discarded := n.settings().fault == blackhole; {
	case discarded && replies: // the client must not notice that the server closed the connection
		n.setLastingFault(blackhole)
	case discarded || !errors.Is(err, io.EOF):
		n.close(true)
	default:
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}
}

// deliver writes the chunks when they are due.
func (n *link) deliver(chunks <-chan chunk, to net.Conn) {
	for c := range chunks {
		if wait := max(time.Until(c.due), c.pause); wait > 0 {
			select {
			case <-time.After(wait):
			case <-n.ctx.Done():
			}
		}
		if _, err := to.Write(c.bytes); err != nil {
			n.close(true) // no later chunk can be delivered
		}
	}
}

// Network returns the network of an address: a path is a Unix socket.
func Network(addr string) string {
	if strings.Contains(addr, "/") {
		return "unix"
	}
	return "tcp"
}
