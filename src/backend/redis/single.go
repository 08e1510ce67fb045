package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mediocregopher/radix/v4"
)

// single is one connection to one server. It connects when it is needed, and
// after a failure not again before a moment has passed: a server that is down
// must not be asked as often as we are. It is used by one writer only.
type single struct {
	cfg   *Config
	stats *counters

	conn  radix.Conn
	after time.Time // no new connection before
	wait  time.Duration
	err   error // why not
}

// The pause between two attempts to connect doubles up to retryMost, with
// jitter, so that a server that comes back is found within a second and not by
// all at once.
const (
	retryLeast = 10 * time.Millisecond
	retryMost  = 500 * time.Millisecond
)

// Do performs a, connecting first if need be. Whatever fails closes the
// connection: its state is not known.
func (s *single) Do(ctx context.Context, a radix.Action) error {
	if s.conn == nil {
		if err := s.connect(ctx); err != nil {
			return err
		}
	}
	if err := a.Perform(ctx, s.conn); err != nil {
		_ = s.conn.Close() // it is of no use any more
		s.conn = nil
		return fmt.Errorf("redis: %s: %w", s.cfg.Addr, err)
	}
	return nil
}

func (s *single) connect(ctx context.Context) error {
	if time.Now().Before(s.after) {
		return s.err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		s.wait = min(max(2*s.wait, retryLeast), retryMost)
		s.after = time.Now().Add(s.wait/2 + rand.N(s.wait/2+1))
		s.err = fmt.Errorf("redis: %s: %w", s.cfg.Addr, err)
		return s.err
	}
	s.conn, s.wait = conn, 0
	return nil
}

func (s *single) dial(ctx context.Context) (radix.Conn, error) {
	guard := &dialer{
		dialTimeout: s.cfg.DialTimeout, ioTimeout: s.cfg.Timeout,
		dials: &s.stats.dials, open: &s.stats.open,
	}
	d := radix.Dialer{SelectDB: s.cfg.DB, NetDialer: guard}
	var err error
	if s.cfg.Credentials != nil {
		if d.AuthUser, d.AuthPass, err = s.cfg.Credentials(); err != nil {
			return nil, err
		}
	}
	if s.cfg.TLS != nil {
		if guard.tls, err = s.cfg.TLS(); err != nil {
			return nil, err
		}
	}
	return d.Dial(ctx, s.cfg.Network, s.cfg.Addr)
}

// Close closes the connection.
func (s *single) Close() error {
	if s.conn == nil {
		return nil
	}
	conn := s.conn
	s.conn = nil
	return conn.Close()
}
