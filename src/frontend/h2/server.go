package h2

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/frontend/tlsconn"
)

const (
	// HandshakeTimeout bounds the TLS handshake, and then the connection preface.
	HandshakeTimeout = 5 * time.Second
	// MaxHeaderBytes bounds the header list of a request, as RFC 9113 section 6.5.2 counts it.
	MaxHeaderBytes = 64 << 10
)

// Config configures a Server. All functions and Handler are required.
type Config struct {
	// Path is the path of the unary method for Decide, such as "/package.Service/Method". If it is empty, Handler answers
	// all.
	Path string
	// Decide answers all calls of the batch. It must not keep the batch. Batches of one connection may be decided at the
	// same time.
	Decide func(*Batch)
	// DecideWaits says that Decide may wait. Later calls then do not wait for slow ones, and a batch has calls with
	// similar timeouts.
	DecideWaits bool
	// IsLarge reports whether Handler should answer the call with this message, although Decide could.
	IsLarge func(message []byte) bool
	// Handler answers other requests, and calls with compressed messages, several messages or an unusual content type.
	Handler http.Handler
	// KindOf returns how Handler answers the requests of gRPC with this path.
	KindOf func(path string) MethodKind
	// OpenAccount returns the account of a new connection. When memory runs out, its owner may call evict, which does not
	// block.
	OpenAccount func(evict func()) Account
	// ConnContext returns the context for all requests of a connection to Handler.
	ConnContext func(ctx context.Context, a Account) context.Context
	// OnPanic gets the value and the stack of each panic in Decide and Handler.
	OnPanic func(value any, stack []byte)
	ConnConfig
}

// ConnConfig says what connections may do.
type ConnConfig struct {
	// OnProtocolError gets the reason for which a connection to a client was ended: a *WrongProtocolError if the client
	// speaks HTTP/1.1 or TLS, or none. It must be fast.
	OnProtocolError func(client net.Addr, err error)
	// TLS, if set, encrypts every connection. Clients must negotiate "h2".
	TLS *tls.Config
	// MaxMessageBytes is the size of the largest message. Defaults to 4 MiB.
	MaxMessageBytes int
	// MaxStreams is how many streams a connection may have at a time. 0 means any number.
	MaxStreams uint32
	// MaxClientSilence is how long a client may be silent before it gets a ping, which it must answer in 20 s. 0 means no
	// pings.
	MaxClientSilence time.Duration
	// MinClientPingInterval is the shortest time between two pings of a client without a call between them. 0 means no
	// bound.
	MinClientPingInterval time.Duration
	// MaxConnectionAge is the age at which clients are asked to reconnect, ± 10 %. 0 means never. Calls may run for
	// MaxConnectionAgeGrace after that; 0 means any time.
	MaxConnectionAge, MaxConnectionAgeGrace time.Duration
}

// MethodKind is how Handler answers the requests of a method.
type MethodKind uint8

const (
	// UnknownMethod is for requests that Handler refuses at once.
	UnknownMethod MethodKind = iota
	// UnaryMethod is for requests with one message. Handler gets them when it is complete, and the body ends after it.
	UnaryMethod
	// StreamMethod is for requests with any number of messages. Handler calls AwaitMessage and AcceptMessage before it
	// reads each, and bounds how many streams there are.
	StreamMethod
)

// Account counts the memory of one connection. Its methods may be called from any goroutine.
type Account interface {
	tlsconn.Account
	Close() // Close ends the use of the account.
}

// Stats counts connections that were closed since the start.
type Stats struct {
	Stalled  atomic.Int64 // for clients that did not read.
	Flooding atomic.Int64 // for clients that caused work without calls.
	Invalid  atomic.Int64 // for clients that violated the protocol in another way.
}

// Server serves connections. Create it with NewServer.
type Server struct {
	Stats
	cfg         Config
	batches     sync.Pool // *Batch values.
	buffers     sync.Pool // *[largeBufferBytes]byte values.
	staticTable *[staticFields]field
	slots       handlerSlots
	longBlocks  chan struct{} // has an element for each header block that readHeadInTurn decodes.
	ctx         context.Context
	closeConns  context.CancelFunc // ends ctx, the context of all connections.
	yield       func()             // yieldProcessor. Tests replace it.

	mu        sync.Mutex
	conns     map[*conn]struct{} // guarded by mu
	listeners []net.Listener     // guarded by mu
	stopping  atomic.Bool        // set while mu is held
	watch     sync.Once
	running   sync.WaitGroup // the goroutines of Serve and of connections; Add needs mu and !stopping.
}

// NewServer returns a server without connections.
func NewServer(cfg Config) *Server {
	cfg.MaxMessageBytes = cmp.Or(cfg.MaxMessageBytes, 4<<20)
	s := &Server{cfg: cfg, conns: make(map[*conn]struct{}), yield: yieldProcessor}
	s.longBlocks = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))
	s.batches.New = func() any { return new(Batch) }
	s.buffers.New = func() any { return new([largeBufferBytes]byte) }
	s.staticTable = newStaticTable(cfg.Path)
	s.ctx, s.closeConns = context.WithCancel(context.Background())
	return s
}

// Serve accepts connections from l and serves them until Shutdown; then it returns nil. It closes l.
func (s *Server) Serve(l net.Listener) error {
	defer func() { _ = l.Close() }() // Shutdown may have closed l already.
	s.mu.Lock()
	if s.stopping.Load() {
		s.mu.Unlock()
		return nil
	}
	s.listeners = append(s.listeners, l)
	s.running.Add(1)
	s.mu.Unlock()
	defer s.running.Done()
	s.watch.Do(func() { go s.watchConns() })
	for {
		raw, err := l.Accept()
		switch {
		case err == nil:
			s.start(raw)
		case s.stopping.Load():
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			time.Sleep(acceptPause) // Most often the process has no file descriptor left.
		}
	}
}

// start serves the connection raw in a new goroutine.
func (s *Server) start(raw net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping.Load() {
		_ = raw.Close() // The client has not been told of any answer.
		return
	}
	c := newConn(s, raw)
	s.conns[c] = struct{}{}
	s.running.Add(1)
	c.spawn(c.serve)
}

// forget removes c, which has ended.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.running.Done()
}

// openConns appends the connections of now to conns.
func (s *Server) openConns(conns []*conn) []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.AppendSeq(conns, maps.Keys(s.conns))
}

// Shutdown stops accepting connections, tells all clients to go away, and waits until the calls that they have sent are
// answered. When ctx ends, it closes all connections. It then waits for Decide and Handler no longer than
// shutdownPatience.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.stopping.Store(true)
	for _, l := range s.listeners {
		_ = l.Close() // Serve learns of it from Accept.
	}
	s.mu.Unlock()
	for _, c := range s.openConns(nil) {
		c.mu.Lock()
		c.leave("the server shuts down")
		c.mu.Unlock()
	}
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	s.closeConns()
	for _, c := range s.openConns(nil) {
		c.close()
	}
	select {
	case <-done:
	case <-time.After(shutdownPatience):
	}
}
