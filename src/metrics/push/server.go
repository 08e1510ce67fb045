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

// connection is a connection to a statsd server, or Config.Writer. Only one goroutine may use it.
type connection struct {
	cfg          *Config
	countDropped func(lines []byte)
	lastDialTime time.Time // the time of the last attempt to connect.

	conn             net.Conn      // nil if there is no connection.
	stopContextWatch func() bool   // ends the watch of the context that closes conn.
	serverClosed     chan struct{} // closed when the server closes conn. It is nil for UDP.
}

// newConnection sets the defaults of cfg and keeps it. countDropped gets lines that are lost.
func newConnection(cfg *Config, countDropped func(lines []byte)) (*connection, error) {
	c := &connection{cfg: cfg, countDropped: countDropped}
	if cfg.Writer != nil {
		return c, nil
	}
	if cfg.Addr == "" {
		return nil, errors.New("statsd: the address is empty: write host:port")
	}
	cfg.Network = cmp.Or(cfg.Network, "tcp")
	switch cfg.Network {
	case "tcp":
	case "udp":
		cfg.limits.batchBytes = maxPacketBytes
	default:
		return nil, fmt.Errorf("statsd: protocol %q is not tcp or udp", cfg.Network)
	}
	return c, nil
}

// errTooEarlyToDial is returned if the last attempt to connect is less than limits.retryPause ago.
var errTooEarlyToDial = errors.New("too early to connect again")

// writeLines connects if necessary and sends lines. It returns the number of bytes of the whole lines that it sent, or
// dropped because another attempt would fail, too. After a failure it closes the connection.
func (s *connection) writeLines(ctx context.Context, lines []byte) (int, error) {
	if w := s.cfg.Writer; w != nil {
		if _, err := w.Write(lines); err != nil {
			s.countDropped(lines)
		}
		return len(lines), nil
	}
	select {
	case <-s.serverClosed:
		s.close()
	default:
	}
	if s.conn == nil {
		if time.Since(s.lastDialTime) < s.cfg.limits.retryPause {
			return 0, errTooEarlyToDial
		}
		s.lastDialTime = time.Now()
		if err := s.dial(ctx); err != nil {
			return 0, err
		}
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(s.cfg.limits.writeTimeout)) // Write reports a broken connection.
	n, err := s.conn.Write(lines)
	if err == nil {
		return n, nil
	}
	s.close()
	if s.cfg.Network == "udp" && !errors.Is(err, syscall.ECONNREFUSED) && ctx.Err() == nil {
		s.countDropped(lines) // The packet is too big for this network, or forbidden.
		return len(lines), err
	}
	// A line counts as sent without its line feed, because the end of the connection ends it.
	return bytes.LastIndexByte(lines[:min(n+1, len(lines))], '\n') + 1, err
}

// dialTimeout is short because no lines are sent during an attempt to connect.
const dialTimeout = 1500 * time.Millisecond

// dial sets conn to a new connection, which is closed when ctx ends.
func (s *connection) dial(ctx context.Context) error {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, s.cfg.Network, s.cfg.Addr)
	if err != nil {
		return err
	}
	s.conn = conn
	s.stopContextWatch = context.AfterFunc(ctx, func() { _ = conn.Close() }) // The next write to conn fails then.
	if s.cfg.Network == "tcp" {
		// A read returns when the server closes the connection; a statsd server sends
		// nothing. Without the read, the next write would succeed and lose its lines.
		gone := make(chan struct{})
		s.serverClosed = gone
		go func() {
			defer close(gone)
			_, _ = io.Copy(io.Discard, conn) // Any error means that the connection ended.
		}()
	}
	return nil
}

func (s *connection) close() {
	if s.conn == nil {
		return
	}
	s.stopContextWatch()
	_ = s.conn.Close() // The method write has reported all failures that lose lines.
	if s.serverClosed != nil {
		<-s.serverClosed
	}
	s.conn, s.serverClosed = nil, nil
}
