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
	dialed         time.Time // the last attempt

	conn    net.Conn      // nil: none
	release func() bool   // of the context that closes conn
	gone    chan struct{} // closed when the other end of conn is; nil for UDP
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
	select {
	case <-s.gone:
		s.close()
	default:
	}
	if s.conn == nil {
		if time.Since(s.dialed) < s.retry {
			return 0, errTooEarly
		}
		s.dialed = time.Now()
		if err := s.dial(ctx); err != nil {
			return 0, err
		}
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(s.timeout)) // Write reports a broken connection
	n, err := s.conn.Write(lines)
	if err == nil {
		return n, nil
	}
	s.close()
	if s.network == "udp" && !errors.Is(err, syscall.ECONNREFUSED) && ctx.Err() == nil {
		err = &lostError{err} // the packet is too big for this network, or forbidden
	}
	// A line that lacks only its line feed counts as sent: servers accept it when the
	// connection ends.
	return bytes.LastIndexByte(lines[:min(n+1, len(lines))], '\n') + 1, err
}

// dialTimeout is short because lines wait meanwhile.
const dialTimeout = 1500 * time.Millisecond

// dial connects. When ctx ends, the connection is closed.
func (s *server) dial(ctx context.Context) error {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, s.network, s.addr)
	if err != nil {
		return err
	}
	s.conn = conn
	s.release = context.AfterFunc(ctx, func() { _ = conn.Close() }) // write reports it
	if s.network == "tcp" {
		// Servers never answer. Without reading, the first write after a server left
		// would succeed, and its lines would be lost.
		gone := make(chan struct{})
		s.gone = gone
		go func() {
			defer close(gone)
			_, _ = io.Copy(io.Discard, conn) // every end of it means the same
		}()
	}
	return nil
}

func (s *server) close() {
	if s.conn == nil {
		return
	}
	s.release()
	_ = s.conn.Close() // write reported all failures that lose lines
	if s.gone != nil {
		<-s.gone
	}
	s.conn, s.gone = nil, nil
}
