package harness

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy passes connections on to a server, until it is told to break them. It
// has one fault at a time, for old connections and new ones.
//
// A connection that lost bytes to a fault stays broken for as long as it
// lives: after it, the two ends would not agree on which reply is whose. Heal
// is for all others.
type Proxy struct {
	Addr string // "127.0.0.1:port", the same for as long as the proxy lives

	t   testing.TB
	all sync.WaitGroup // accept and the links

	mu       sync.Mutex // guards what follows
	target   string
	listener net.Listener
	links    map[*link]struct{}
	accepted int
	closed   bool
	fault    fault
	latency  time.Duration
	jitter   time.Duration // at most so much is added to latency
	pace     time.Duration // between two bytes that drip
	extra    *extra        // nil: none
	changed  chan struct{} // closed and replaced when fault changes
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
	Before  Place = iota // in front of what the server says next
	Between              // behind the first line of it
	Behind               // behind all of it, in the same packet
	Later                // behind it after a pause
)

// StartProxy passes connections to its Addr on to target, an address or the
// path of a Unix socket. Nobody needs to listen there yet.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := newProxy(t, target)
	err := Retry(Deadline, func() error {
		port, err := FreePort()
		if err != nil {
			return err
		}
		p.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		return p.listen()
	})
	if err != nil {
		t.Fatalf("harness: proxy: %v", err)
	}
	t.Cleanup(p.close)
	return p
}

// StartProxyAt is StartProxy for an Addr that is given, such as the port of
// another proxy at another address of this machine.
func StartProxyAt(t testing.TB, addr, target string) *Proxy {
	t.Helper()
	p := newProxy(t, target)
	p.Addr = addr
	if err := p.listen(); err != nil {
		t.Fatalf("harness: proxy: %v", err)
	}
	t.Cleanup(p.close)
	return p
}

func newProxy(t testing.TB, target string) *Proxy {
	return &Proxy{t: t, target: target, links: make(map[*link]struct{}), changed: make(chan struct{})}
}

// Aim passes new connections on to another target.
func (p *Proxy) Aim(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

func (p *Proxy) aim() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// listen opens the door at Addr.
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

func (p *Proxy) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // Refuse or close
		}
		n := &link{p: p, client: conn.(*net.TCPConn)}
		n.ctx, n.cancel = context.WithCancel(context.Background())
		if !p.add(n) {
			n.end(true)
			return
		}
		p.all.Go(n.run)
	}
}

func (p *Proxy) add(n *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.links[n] = struct{}{}
	p.accepted++
	return true
}

func (p *Proxy) drop(n *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, n)
}

// close is the cleanup: it returns when nothing of the proxy is left.
func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Refuse()
	p.Reset()
	p.all.Wait()
}

// set changes the fault for all connections.
func (p *Proxy) set(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) state() (fault, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault, p.changed
}

// delay is how long a reply that comes now is kept.
func (p *Proxy) delay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.latency
	if p.jitter > 0 {
		d += rand.N(p.jitter)
	}
	return d
}

// step is the time between two bytes that drip.
func (p *Proxy) step() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pace
}

// Blackhole accepts connections and swallows all bytes, both ways.
func (p *Proxy) Blackhole() { p.set(blackhole) }

// DropReplies passes requests on and swallows the replies: what was asked
// happens, and nobody learns of it.
func (p *Proxy) DropReplies() { p.set(dropReplies) }

// Garbage passes requests on and answers with bytes that no server sends.
func (p *Proxy) Garbage() { p.set(garbage) }

// Hold keeps all bytes back, both ways; after Heal they are delivered, as
// after a short cut in a network.
func (p *Proxy) Hold() { p.set(hold) }

// Drip delivers replies byte by byte, one each time that every has passed. No
// byte is lost: connections are well again once theirs have arrived.
func (p *Proxy) Drip(every time.Duration) {
	p.mu.Lock()
	p.pace = every
	p.mu.Unlock()
	p.set(drip)
}

// Cut delivers the first half of what a server says at once, and ends the
// connection there.
func (p *Proxy) Cut() { p.set(cut) }

// Silence makes the connections there are black holes for as long as they live,
// as when a device on the way forgot them. New ones are whole.
func (p *Proxy) Silence() {
	for _, n := range p.open() {
		n.lose(blackhole)
	}
}

// Insert puts bytes once into the replies of each connection, those that are open and those
// still to come. Later waits for the pause. Heal ends it.
func (p *Proxy) Insert(content string, place Place, pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.extra = &extra{[]byte(content), place, pause}
}

// Say sends bytes at once to the clients of all connections that are open. Use it while
// nothing else is on its way to them.
func (p *Proxy) Say(content string) {
	for _, n := range p.open() {
		_, _ = n.client.Write([]byte(content)) // one that has gone hears nothing
	}
}

func (p *Proxy) insertion() *extra {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.extra
}

// Latency delays every reply by d, without regard to other faults. Replies do
// not wait for each other. It is for what comes from now on, and ends with
// Heal or Latency(0).
func (p *Proxy) Latency(d time.Duration) { p.Jitter(d, d) }

// Jitter is Latency of at least low and less than high, drawn for each reply. They
// keep their order.
func (p *Proxy) Jitter(low, high time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency, p.jitter = low, high-low
}

// Refuse closes the port: who dials is refused. Connections there are stay.
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
	p.set(none)
	p.Latency(0)
	p.Insert("", Before, 0)
	if err := Retry(Deadline, p.listen); err != nil {
		p.t.Errorf("harness: proxy: %v", err)
	}
}

// Reset ends all connections with a RST, and leaves the door open.
func (p *Proxy) Reset() {
	for _, n := range p.open() {
		n.end(true)
	}
}

// HalfClose ends the replies of all connections with a FIN, and still passes on
// what the clients send. New connections are whole.
func (p *Proxy) HalfClose() {
	for _, n := range p.open() {
		n.lose(dropReplies)
		_ = n.client.CloseWrite()
	}
}

func (p *Proxy) open() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*link, 0, len(p.links))
	for n := range p.links {
		list = append(list, n)
	}
	return list
}

// Open is the number of connections there are.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Accepted is the number of connections there have ever been.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// link is one client's connection and the one to the target.
type link struct {
	p      *Proxy
	client *net.TCPConn
	once   sync.Once
	ctx    context.Context // ends with the link
	cancel context.CancelFunc

	mu     sync.Mutex // guards what follows
	server net.Conn   // nil until dialled
	lost   fault      // the fault that took the first byte

	inserted *extra // the last one; of the goroutine that passes replies
}

// end closes both sides; with reset, the client gets a RST.
func (n *link) end(reset bool) {
	n.once.Do(func() {
		n.cancel()
		if reset {
			_ = n.client.SetLinger(0)
		}
		_ = n.client.Close()
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.server != nil {
			_ = n.server.Close()
		}
	})
}

func (n *link) run() {
	defer n.p.drop(n)
	var dialer net.Dialer
	target := n.p.aim()
	server, err := dialer.DialContext(n.ctx, network(target), target)
	if err != nil {
		if n.suffer() == blackhole {
			_, _ = io.Copy(io.Discard, n.client) // until the client or Reset ends it
		}
		n.end(true)
		return
	}
	n.mu.Lock()
	n.server = server
	n.mu.Unlock()
	if n.ctx.Err() != nil { // it ended before there was a server to close
		_ = server.Close()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { n.pass(n.client, server, false) })
	both.Go(func() { n.pass(server, n.client, true) })
	both.Wait()
	n.end(false)
}

// parcel is what was read at once, and when it is to be delivered: not before
// due, nor sooner than wait after the one before.
type parcel struct {
	bytes []byte
	due   time.Time
	wait  time.Duration
}

// pass copies from one side to the other, through the faults, until the one
// has no more to say or either breaks.
func (n *link) pass(from, to net.Conn, replies bool) {
	// Reading goes on while parcels wait, so that latency does not cost
	// throughput.
	parcels := make(chan parcel, 1024)
	var deliverer sync.WaitGroup
	deliverer.Go(func() { n.deliver(parcels, to) })
	buffer := make([]byte, 64<<10)
	var err error
	for err == nil {
		var k int
		if k, err = from.Read(buffer); k == 0 {
			continue
		}
		switch f := n.suffer(); {
		case f == blackhole || f == dropReplies && replies:
			n.lose(f)
		case f == garbage && replies:
			n.lose(f)
			n.post(parcels, []byte("\x00?!\r\n"), replies)
		case f == cut && replies:
			n.post(parcels, bytes.Clone(buffer[:k/2]), replies)
			n.lose(f)
			err = io.EOF
		case f == drip && replies:
			for i := range k {
				n.put(parcels, parcel{bytes: []byte{buffer[i]}, wait: n.p.step()})
			}
		case replies:
			n.postWithExtra(parcels, bytes.Clone(buffer[:k]))
		default:
			n.post(parcels, bytes.Clone(buffer[:k]), replies)
		}
	}
	close(parcels)
	deliverer.Wait()
	switch swallowed := n.suffer() == blackhole; {
	case swallowed && replies: // the client does not learn that the server left
		n.lose(blackhole)
	case swallowed || !errors.Is(err, io.EOF):
		n.end(true)
	default:
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}
}

// suffer returns the fault that applies to this connection, after waiting
// while it is held.
func (n *link) suffer() fault {
	for {
		f, changed := n.p.state()
		n.mu.Lock()
		if n.lost != none {
			f = n.lost
		}
		n.mu.Unlock()
		if f != hold {
			return f
		}
		select {
		case <-changed:
		case <-n.ctx.Done():
			return blackhole
		}
	}
}

// lose makes a fault stay.
func (n *link) lose(f fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lost == none {
		n.lost = f
	}
}

func (n *link) post(parcels chan<- parcel, content []byte, replies bool) {
	item := parcel{bytes: content}
	if replies {
		item.due = time.Now().Add(n.p.delay())
	}
	n.put(parcels, item)
}

// postWithExtra posts replies, with the bytes of Insert if they are due.
func (n *link) postWithExtra(parcels chan<- parcel, content []byte) {
	e := n.p.insertion()
	if e == nil || e == n.inserted {
		n.post(parcels, content, true)
		return
	}
	n.inserted = e
	switch e.place {
	case Before:
		content = slices.Concat(e.bytes, content)
	case Between:
		content = slices.Insert(content, bytes.IndexByte(content, '\n')+1, e.bytes...)
	case Behind:
		content = append(content, e.bytes...)
	case Later:
	}
	n.post(parcels, content, true)
	if e.place == Later {
		n.put(parcels, parcel{bytes: e.bytes, wait: e.pause})
	}
}

func (n *link) put(parcels chan<- parcel, item parcel) {
	select {
	case parcels <- item:
	case <-n.ctx.Done():
	}
}

func (n *link) deliver(parcels <-chan parcel, to net.Conn) {
	for item := range parcels {
		if wait := max(time.Until(item.due), item.wait); wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-n.ctx.Done():
				timer.Stop()
			}
		}
		if _, err := to.Write(item.bytes); err != nil {
			n.end(true) // what is left in parcels fails likewise
		}
	}
}

func network(addr string) string {
	if strings.Contains(addr, "/") {
		return "unix"
	}
	return "tcp"
}
