package statsd

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

// send empties the queue into connections, one after the other. What a
// connection did not take is kept for the next. Once the queue is closed, there
// is one more connection at most: what a UDP write reports may be the fate of
// the packet before.
func (s *Sink) send(ctx context.Context) {
	var (
		c      *conn
		dialed time.Time
		failed bool
		last   bool // the connection, or the attempt at one
		batch  []byte
	)
	defer func() { c.close() }()
	state := func(err error) {
		if failed != (err != nil) {
			failed = err != nil
			s.cfg.OnState(err)
		}
	}
	for s.queue.Wait(ctx) {
		if c.isBroken() {
			c.close()
			c = nil
		}
		if c == nil {
			s.pause(ctx, time.Until(dialed.Add(s.cfg.RetryInterval)))
			last = s.queue.IsClosed()
			dialed = time.Now()
			var err error
			if c, err = s.dial(ctx); err != nil {
				state(s.failure(err))
				if last {
					return
				}
				continue
			}
		}
		batch = s.queue.Peek(batch[:0])
		n, err := c.write(batch, s.cfg.WriteTimeout)
		if err != nil && s.cfg.Network == "udp" && !errors.Is(err, syscall.ECONNREFUSED) && ctx.Err() == nil {
			// Not one packet too early but one that will never go: too big for
			// this network, or forbidden.
			n = len(batch)
			for range bytes.Count(batch, []byte{'\n'}) {
				s.queue.Drop()
			}
		}
		s.queue.Discard(n)
		if err == nil {
			state(nil)
			continue
		}
		state(s.failure(err))
		c.close()
		c = nil
		if last {
			return
		}
	}
}

func (s *Sink) failure(err error) error {
	return fmt.Errorf("statsd: sending to %s over %s: %w; trying again every %v", s.cfg.Addr, s.cfg.Network, err, s.cfg.RetryInterval)
}

// pause waits for d, or until the queue is closed or ctx ends.
func (s *Sink) pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.queue.Closed():
	case <-ctx.Done():
	}
}

// conn is a connection that notices when the other end leaves. A nil conn may
// be closed.
type conn struct {
	net.Conn
	release func() bool   // of the context
	gone    chan struct{} // closed when the other end is; nil for UDP
}

// dialTimeout is short because lines wait meanwhile.
const dialTimeout = 1500 * time.Millisecond

// dial connects. When ctx ends, the connection is closed, whatever it does.
func (s *Sink) dial(ctx context.Context) (*conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	raw, err := d.DialContext(ctx, s.cfg.Network, s.cfg.Addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw}
	c.release = context.AfterFunc(ctx, func() { _ = raw.Close() }) // write says so
	if s.cfg.Network == "tcp" {
		// Servers never answer. Without reading, the first write after they
		// left would seem to succeed, and be lost.
		c.gone = make(chan struct{})
		go func() {
			defer close(c.gone)
			_, _ = io.Copy(io.Discard, raw) // whatever the reason
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
	if c == nil {
		return
	}
	c.release()
	_ = c.Close() // nothing is lost that write did not report
	if c.gone != nil {
		<-c.gone
	}
}

// write returns how many bytes of whole lines went out.
func (c *conn) write(lines []byte, timeout time.Duration) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(lines)
	if err == nil {
		return n, nil
	}
	// A line that lacks nothing but its line feed counts as sent: servers take
	// it so when the connection ends.
	return bytes.LastIndexByte(lines[:min(n+1, len(lines))], '\n') + 1, err
}
