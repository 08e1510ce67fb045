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
	"testing"
	"time"
)

// Proxy passes connections on to a server until it is told to break them. It has one fault at
// a time, for old connections and new ones.
//
// A connection that lost bytes to a fault stays broken after Heal: its two ends would not
// agree on which reply belongs to which request.
type Proxy struct {
	Addr string // "127.0.0.1:port", the same for as long as the proxy lives

	t   testing.TB
	all sync.WaitGroup // accept and the links

	mu       sync.Mutex // guards what follows
	settings settings
	changed  chan struct{} // closed and replaced when settings change
	listener net.Listener  // nil while the port is closed
	links    map[*link]struct{}
	accepted int
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

// StartProxy passes connections to its Addr on to target, an address or the path of a Unix
// socket. Nothing needs to listen there yet.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, settings: settings{target: target}, links: make(map[*link]struct{}), changed: make(chan struct{})}
	p.start(Retry(Deadline, func() error {
		port, err := FreePort()
		if err != nil {
			return err
		}
		p.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		return p.listen()
	}))
	return p
}

// StartProxyAt is StartProxy with a given Addr.
func StartProxyAt(t testing.TB, addr, target string) *Proxy {
	t.Helper()
	p := &Proxy{Addr: addr, t: t, settings: settings{target: target}, links: make(map[*link]struct{}), changed: make(chan struct{})}
	p.start(p.listen())
	return p
}

// start ends the test if the proxy does not listen, and otherwise lets the test end the proxy.
func (p *Proxy) start(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("harness: proxy: %v", err)
	}
	p.t.Cleanup(p.close)
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

func (p *Proxy) remove(n *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, n)
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

// Hold keeps all bytes, both ways, until Heal delivers them, as after a short failure of a
// network.
func (p *Proxy) Hold() { p.setFault(hold) }

// Cut delivers the first half of a reply, and ends the connection there.
func (p *Proxy) Cut() { p.setFault(cut) }

// Drip delivers replies byte by byte with a pause between two. No byte is lost.
func (p *Proxy) Drip(pause time.Duration) {
	p.change(func(s *settings) { s.fault, s.pace = drip, pause })
}

// Silence makes the open connections black holes for as long as they live, as when a device in
// between forgot them. New connections work.
func (p *Proxy) Silence() {
	for _, n := range p.open() {
		n.lose(blackhole)
	}
}

// Insert puts bytes once into the replies of each connection, open or new. Later waits for the
// pause. Heal ends it.
func (p *Proxy) Insert(content string, place Place, pause time.Duration) {
	p.change(func(s *settings) { s.extra = &extra{[]byte(content), place, pause} })
}

// Say sends bytes at once to the clients of all open connections. It must not be used while a
// reply is on its way.
func (p *Proxy) Say(content string) {
	for _, n := range p.open() {
		_, _ = n.client.Write([]byte(content)) // the client may be gone
	}
}

// Latency delays every reply by d, with any fault, until Heal or Latency(0). Replies do not
// wait for each other.
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

// HalfClose ends the replies of all open connections with a FIN, and still passes on what the
// clients send. New connections work.
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

// Accepted returns the number of connections since the start.
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
	defer n.p.remove(n)
	var dialer net.Dialer
	set, _ := n.p.now()
	server, err := dialer.DialContext(n.ctx, network(set.target), set.target)
	if err != nil {
		if n.currentFault() == blackhole {
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

// parcel is bytes to deliver: not before due, and at least wait after the parcel before.
type parcel struct {
	bytes []byte
	due   time.Time
	wait  time.Duration
}

// pass copies from one side to the other, through the faults, until one side ends or fails.
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
		switch f := n.currentFault(); {
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
				set, _ := n.p.now()
				n.put(parcels, parcel{bytes: []byte{buffer[i]}, wait: set.pace})
			}
		case replies:
			n.postWithExtra(parcels, bytes.Clone(buffer[:k]))
		default:
			n.post(parcels, bytes.Clone(buffer[:k]), replies)
		}
	}
	close(parcels)
	deliverer.Wait()
	switch discarded := n.currentFault() == blackhole; {
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

// currentFault returns the fault that applies to this connection. It waits for the end of hold.
func (n *link) currentFault() fault {
	for {
		set, changed := n.p.now()
		n.mu.Lock()
		f := cmp.Or(n.lost, set.fault)
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

// lose makes a fault last as long as the connection.
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
		set, _ := n.p.now()
		item.due = time.Now().Add(set.latency)
		if set.jitter > 0 {
			item.due = item.due.Add(rand.N(set.jitter))
		}
	}
	n.put(parcels, item)
}

// postWithExtra posts replies, with the bytes of Insert once.
func (n *link) postWithExtra(parcels chan<- parcel, content []byte) {
	set, _ := n.p.now()
	e := set.extra
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
			n.end(true) // the other parcels fail too
		}
	}
}

func network(addr string) string {
	if strings.Contains(addr, "/") {
		return "unix"
	}
	return "tcp"
}
