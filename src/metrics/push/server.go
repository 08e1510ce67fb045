package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// server is a connection to a statsd server. Only one goroutine may use it.
type server struct {
	cfg    *Config
	dialed time.Time // the last attempt to connect

	conn    net.Conn      // nil if there is no connection
	release func() bool   // stops the wait for the context that closes conn
	gone    chan struct{} // closed when the server closes conn; nil for UDP
}

// newServer sets the defaults of cfg and keeps it.
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
		cfg.limits.batch = maxPacket
	default:
		return nil, fmt.Errorf("statsd: protocol %q is not tcp or udp", cfg.Network)
	}
	return &server{cfg: cfg}, nil
}

// errTooEarly is returned if the last attempt to connect is less than limits.retry ago.
var errTooEarly = errors.New("too early to connect again")

// lostError is the failure of a write that would fail again with the same lines.
type lostError struct{ error }

// write connects if necessary and sends lines. It returns the number of bytes of the whole
// lines that it sent. After a failure it closes the connection.
func (s *server) write(ctx context.Context, lines []byte) (int, error) {
	select {
	case <-s.gone:
		s.close()
	default:
	}
	if s.conn == nil {
		if time.Since(s.dialed) < s.cfg.limits.retry {
			return 0, errTooEarly
		}
		s.dialed = time.Now()
		if err := s.dial(ctx); err != nil {
			return 0, err
		}
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(s.cfg.limits.write)) // Write reports a broken connection
	n, err := s.conn.Write(lines)
	if err == nil {
		return n, nil
	}
	s.close()
	if s.cfg.Network == "udp" && !errors.Is(err, syscall.ECONNREFUSED) && ctx.Err() == nil {
		err = &lostError{err} // the packet is too big for this network, or forbidden
	}
	// A line counts as sent without its line feed, because the end of the connection ends it.
	return bytes.LastIndexByte(lines[:min(n+1, len(lines))], '\n') + 1, err
}

// dialTimeout is short because no lines are sent during an attempt to connect.
const dialTimeout = 1500 * time.Millisecond

// dial sets conn to a new connection, which is closed when ctx ends.
func (s *server) dial(ctx context.Context) error {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, s.cfg.Network, s.cfg.Addr)
	if err != nil {
		return err
	}
	s.conn = conn
	s.release = context.AfterFunc(ctx, func() { _ = conn.Close() }) // the next write fails
	if s.cfg.Network == "tcp" {
		// A read returns when the server closes the connection; a statsd server sends
		// nothing. Without the read, the next write would succeed and lose its lines.
		gone := make(chan struct{})
		s.gone = gone
		go func() {
			defer close(gone)
			_, _ = io.Copy(io.Discard, conn) // any error means that the connection ended
		}()
	}
	return nil
}

// close closes the connection, if there is one.
func (s *server) close() {
	if s.conn == nil {
		return
	}
	s.release()
	_ = s.conn.Close() // write has reported all failures that lose lines
	if s.gone != nil {
		<-s.gone
	}
	s.conn, s.gone = nil, nil
}
