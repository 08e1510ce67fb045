package push

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// server writes to a statsd server over one connection at a time. One goroutine uses it.
type server struct {
	network, addr  string
	retry, timeout time.Duration
	conn           *conn
	dialed         time.Time // the last attempt
}

func newServer(cfg *Config) (*server, error) {
	if cfg.Addr == "" {
		return nil, errors.New("statsd: the address is empty: write host:port")
	}
	if cfg.Network == "" {
		cfg.Network = "tcp"
		if cfg.Format == DogStatsD {
			cfg.Network = "udp"
		}
	}
	switch cfg.Network {
	case "tcp":
	case "udp":
		cfg.batch = maxPacket
	default:
		return nil, fmt.Errorf("statsd: protocol %q is not tcp or udp", cfg.Network)
	}
	cfg.RetryInterval = cmp.Or(cfg.RetryInterval, 3*time.Second)
	return &server{network: cfg.Network, addr: cfg.Addr, retry: cfg.RetryInterval, timeout: cmp.Or(cfg.WriteTimeout, time.Second)}, nil
}

// errTooEarly says that the last attempt to connect is less than RetryInterval ago.
var errTooEarly = errors.New("too early to connect again")

// lostError is a failure that every attempt with the same lines would have.
type lostError struct{ error }

// write sends lines and returns how many bytes of whole lines went out. After a failure
// it closes the connection.
func (s *server) write(ctx context.Context, lines []byte) (int, error) {
	if s.conn.isBroken() {
		s.close()
	}
	if s.conn == nil {
		if time.Since(s.dialed) < s.retry {
			return 0, errTooEarly
		}
		s.dialed = time.Now()
		var err error
		if s.conn, err = dial(ctx, s.network, s.addr); err != nil {
			return 0, err
		}
	}
	n, err := s.conn.send(lines, s.timeout)
	if err == nil {
		return n, nil
	}
	s.close()
	if s.network == "udp" && !errors.Is(err, syscall.ECONNREFUSED) && ctx.Err() == nil {
		err = &lostError{err} // the packet is too big for this network, or forbidden
	}
	return n, err
}

func (s *server) close() {
	if s.conn != nil {
		s.conn.close()
		s.conn = nil
	}
}

// conn is a connection that notices when the server closes it.
type conn struct {
	net.Conn
	release func() bool   // of the context
	gone    chan struct{} // closed when the other end is; nil for UDP
}

// dialTimeout is short because lines wait meanwhile.
const dialTimeout = 1500 * time.Millisecond

// dial connects. When ctx ends, the connection is closed.
func dial(ctx context.Context, network, addr string) (*conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	raw, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw}
	c.release = context.AfterFunc(ctx, func() { _ = raw.Close() }) // send reports it
	if network == "tcp" {
		// Servers never answer. Without reading, the first write after a server left
		// would succeed, and its lines would be lost.
		c.gone = make(chan struct{})
		go func() {
			defer close(c.gone)
			_, _ = io.Copy(io.Discard, raw) // every end of it means the same
		}()
	}
	return c, nil
}

func (c *conn) isBroken() bool {
	if c == nil {
		return false
	}
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

func (c *conn) close() {
	c.release()
	_ = c.Close() // send reported all failures that lose lines
	if c.gone != nil {
		<-c.gone
	}
}

// send returns how many bytes of whole lines went out.
func (c *conn) send(lines []byte, timeout time.Duration) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return 0, err
	}
	n, err := c.Write(lines)
	if err == nil {
		return n, nil
	}
	// A line that lacks only its line feed counts as sent: servers accept it when the
	// connection ends.
	return bytes.LastIndexByte(lines[:min(n+1, len(lines))], '\n') + 1, err
}
