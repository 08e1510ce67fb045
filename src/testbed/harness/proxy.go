package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy passes connections on to a server until it is told to break them. It has one fault at a time, for old connections and new
// ones.
//
// A connection that lost bytes to a fault stays broken after Heal: its two ends would not agree on which reply belongs to which
// request.
type Proxy struct {
	Addr string // "127.0.0.1:port", the same for as long as the proxy lives

	t   testing.TB
	all sync.WaitGroup // accept and the links

	mu       sync.Mutex // guards what follows
	settings settings
	changed  chan struct{} // closed and replaced when settings change
	listener net.Listener  // nil while the port is closed
	links    map[*link]struct{}
	closed   bool
}

// settings are what the proxy does with bytes.
type settings struct {
	target  string
	fault   fault
	latency time.Duration
	jitter  time.Duration // up to this much is added to latency
	pace    time.Duration // between two bytes, with drip
	extra   *extra        // nil: none
}

type fault int

const (
	none fault = iota
	blackhole
	dropReplies
	garbage
	hold
	drip
	cut
)

// extra is bytes that the server did not send.
type extra struct {
	bytes []byte
	place Place
	pause time.Duration
}

// Place is where Insert puts bytes.
type Place int

const (
	Before  Place = iota // before the next reply
	Between              // after its first line
	Behind               // after all of it, in the same packet
	Later                // after it and a pause
)

// StartProxy passes connections to its Addr on to target, an address or the path of a Unix socket. Nothing needs to listen there
// yet.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	return StartProxyAt(t, "", target)
}

// StartProxyAt is StartProxy with a given Addr; "" is a free port.
func StartProxyAt(t testing.TB, addr, target string) *Proxy {
	t.Helper()
	p := &Proxy{Addr: addr, t: t, settings: settings{target: target}, links: make(map[*link]struct{}), changed: make(chan struct{})}
	err := Retry(Deadline, func() error {
		if addr == "" {
			port, err := FreePort()
			if err != nil {
				return err
			}
			p.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		}
		return p.listen()
	})
	if err != nil {
		t.Fatalf("harness: proxy: %v", err)
	}
	t.Cleanup(p.close)
	return p
}

// listen opens the port.
func (p *Proxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.closed {
		return nil
	}
	l, err := net.Listen("tcp", p.Addr)
	if err != nil {
		return err
	}
	p.listener = l
	p.all.Go(func() { p.accept(l) })
	return nil
}

// accept runs until Refuse or close closes l.
func (p *Proxy) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		n := &link{p: p, client: conn.(*net.TCPConn)}
		n.ctx, n.cancel = context.WithCancel(context.Background())
		p.mu.Lock()
		closed := p.closed
		if !closed {
			p.links[n] = struct{}{}
		}
		p.mu.Unlock()
		if closed {
			n.end(true)
			return
		}
		p.all.Go(n.run)
	}
}

// close is the cleanup. It returns when all goroutines of the proxy have ended.
func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Refuse()
	p.Reset()
	p.all.Wait()
}

func (p *Proxy) change(f func(*settings)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.settings)
	close(p.changed)
	p.changed = make(chan struct{})
}

// now returns the settings, and a channel that is closed when they change.
func (p *Proxy) now() (settings, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings, p.changed
}

func (p *Proxy) setFault(f fault) { p.change(func(s *settings) { s.fault = f }) }

// Aim passes new connections on to another target.
func (p *Proxy) Aim(target string) { p.change(func(s *settings) { s.target = target }) }

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

// Drip delivers replies byte by byte with a pause between two. No byte is lost.
func (p *Proxy) Drip(pause time.Duration) {
	p.change(func(s *settings) { s.fault, s.pace = drip, pause })
}

// Silence makes the open connections black holes for as long as they live, as when a device in between forgot them. New
// connections work.
func (p *Proxy) Silence() {
	for _, n := range p.open() {
		n.lose(blackhole)
	}
}

// Insert puts bytes once into the replies of each connection, open or new. Later waits for the pause. Heal ends it.
func (p *Proxy) Insert(content string, place Place, pause time.Duration) {
	p.change(func(s *settings) { s.extra = &extra{[]byte(content), place, pause} })
}

// Say sends bytes at once to the clients of all open connections. It must not be used while a reply is on its way.
func (p *Proxy) Say(content string) {
	for _, n := range p.open() {
		_, _ = n.client.Write([]byte(content)) // the client may be gone
	}
}

// Latency delays every reply by d, with any fault, until Heal or Latency(0). Replies do not wait for each other.
func (p *Proxy) Latency(d time.Duration) { p.Jitter(d, d) }

// Jitter is Latency of a random time from low to high for each reply. Replies stay in order.
func (p *Proxy) Jitter(low, high time.Duration) {
	p.change(func(s *settings) { s.latency, s.jitter = low, high-low })
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
	p.change(func(s *settings) { *s = settings{target: s.target} })
	if err := Retry(Deadline, p.listen); err != nil {
		p.t.Errorf("harness: proxy: %v", err)
	}
}

// Reset ends all connections with a RST. The port stays open.
func (p *Proxy) Reset() {
	for _, n := range p.open() {
		n.end(true)
	}
}

// HalfClose ends the replies of all open connections with a FIN, and still passes on what the clients send. New connections work.
func (p *Proxy) HalfClose() {
	for _, n := range p.open() {
		n.lose(dropReplies)
		_ = n.client.CloseWrite()
	}
}

func (p *Proxy) open() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.links))
}

// Open returns the number of open connections.
func (p *Proxy) Open() int { return len(p.open()) }

// link is one client's connection and the one to the target.
type link struct {
	p        *Proxy
	client   *net.TCPConn
	ctx      context.Context // ends with the link
	cancel   context.CancelFunc
	lost     atomic.Int32 // the fault that took the first byte; it lasts as long as the link
	inserted *extra       // the last one; of the goroutine that passes replies
}

// end closes both sides; with reset, the client gets a RST. Further calls have no effect.
func (n *link) end(reset bool) {
	n.cancel()
	if reset {
		_ = n.client.SetLinger(0)
	}
	_ = n.client.Close()
}

func (n *link) run() {
	defer func() {
		n.p.mu.Lock()
		defer n.p.mu.Unlock()
		delete(n.p.links, n)
	}()
	set, _ := n.p.now()
	server, err := new(net.Dialer).DialContext(n.ctx, Network(set.target), set.target)
	if err != nil {
		if n.settings().fault == blackhole {
			_, _ = io.Copy(io.Discard, n.client) // until the client or Reset ends it
		}
		n.end(true)
		return
	}
	closeServer := sync.OnceFunc(func() { _ = server.Close() })
	defer closeServer()
	defer context.AfterFunc(n.ctx, closeServer)()
	var both sync.WaitGroup
	both.Go(func() { n.pass(n.client, server, false) })
	both.Go(func() { n.pass(server, n.client, true) })
	both.Wait()
	n.end(false)
}

// settings returns the proxy's settings with the fault of this link. It waits for the end of hold.
func (n *link) settings() settings {
	for {
		set, changed := n.p.now()
		if set.fault = cmp.Or(fault(n.lost.Load()), set.fault); set.fault != hold {
			return set
		}
		select {
		case <-changed:
		case <-n.ctx.Done():
			return settings{fault: blackhole}
		}
	}
}

// lose makes a fault last as long as the link, unless another one does.
func (n *link) lose(f fault) { n.lost.CompareAndSwap(int32(none), int32(f)) }

// parcel is bytes to deliver: not before due, and at least wait after the parcel before.
type parcel struct {
	bytes []byte
	due   time.Time
	wait  time.Duration
}

// pass copies from one side to the other, through the faults, until one side ends or fails.
func (n *link) pass(from, to net.Conn, replies bool) {
	parcels := make(chan parcel, 1024) // reading goes on while they wait: latency costs no throughput
	var deliverer sync.WaitGroup
	deliverer.Go(func() { n.deliver(parcels, to) })
	buffer := make([]byte, 64<<10)
	var err error
	for err == nil {
		var k int
		if k, err = from.Read(buffer); k == 0 {
			continue
		}
		content, set := bytes.Clone(buffer[:k]), n.settings()
		if !replies && set.fault != blackhole {
			set = settings{}
		}
		due := time.Now().Add(set.latency)
		if set.jitter > 0 {
			due = due.Add(rand.N(set.jitter))
		}
		put := func(content []byte, wait time.Duration) {
			select {
			case parcels <- parcel{content, due, wait}:
			case <-n.ctx.Done():
			}
		}
		switch set.fault {
		case blackhole, dropReplies:
			n.lose(set.fault)
		case garbage:
			n.lose(garbage)
			put([]byte("\x00?!\r\n"), 0)
		case cut:
			put(content[:k/2], 0)
			n.lose(cut)
			err = io.EOF
		case drip:
			for _, b := range content {
				set, _ := n.p.now() // Heal ends the pauses
				put([]byte{b}, set.pace)
			}
		default:
			e := set.extra
			if e == nil || e == n.inserted {
				put(content, 0)
				continue
			}
			n.inserted = e
			put(e.insert(content), 0)
			if e.place == Later {
				put(e.bytes, e.pause)
			}
		}
	}
	close(parcels)
	deliverer.Wait()
	switch discarded := n.settings().fault == blackhole; {
	case discarded && replies: // the client does not learn that the server left
		n.lose(blackhole)
	case discarded || !errors.Is(err, io.EOF):
		n.end(true)
	default:
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}
}

// insert returns content with the extra bytes, unless they come Later.
func (e *extra) insert(content []byte) []byte {
	switch e.place {
	case Before:
		return slices.Concat(e.bytes, content)
	case Between:
		return slices.Insert(content, bytes.IndexByte(content, '\n')+1, e.bytes...)
	case Behind:
		return append(content, e.bytes...)
	default:
		return content
	}
}

func (n *link) deliver(parcels <-chan parcel, to net.Conn) {
	for item := range parcels {
		if wait := max(time.Until(item.due), item.wait); wait > 0 {
			select {
			case <-time.After(wait):
			case <-n.ctx.Done():
			}
		}
		if _, err := to.Write(item.bytes); err != nil {
			n.end(true) // the other parcels fail too
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
