package divvy

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"ratelimit/src/frontend/connlimit"
)

const (
	// maxTurnedAway is how many connections beyond MaxConns may wait for their error
	// reply at a time. Further ones are closed without a reply.
	maxTurnedAway = 128
	// maxPause is the longest pause after a temporary error of accept, such as a lack
	// of file descriptors.
	maxPause = time.Second
	// tlsGreeting is how many writes a TLS connection gets before its first reply.
	tlsGreeting = 3
	// farewell is how long Shutdown still reads from connections.
	farewell = 100 * time.Millisecond
)

// Serve answers clients on raw until Shutdown. Call it once.
func (s *Server) Serve(raw net.Listener) error {
	s.mu.Lock()
	s.port.Listener = raw
	s.mu.Unlock()
	defer func() { _ = s.port.Close() }() // Shutdown may have come first and found no listener
	pause := time.Duration(0)
	for s.stopping.Err() == nil {
		c, err := s.port.Accept()
		if err == nil {
			pause = 0
			s.start(c)
			continue
		}
		if s.stopping.Err() != nil {
			break
		}
		if temporary, ok := err.(interface{ Temporary() bool }); !ok || !temporary.Temporary() {
			return fmt.Errorf("divvy: %w", err)
		}
		pause = min(max(5*time.Millisecond, 2*pause), maxPause)
		select {
		case <-time.After(pause):
		case <-s.stopping.Done():
		}
	}
	return nil
}

// start serves raw on a new goroutine. raw is a *connlimit.Conn, or was refused by the
// port. If the server stops, or too many were refused, start only closes raw.
func (s *Server) start(raw net.Conn) {
	c := &conn{Conn: raw, raw: raw, srv: s, refused: true}
	if limited, ok := raw.(*connlimit.Conn); ok {
		c.account, c.refused = limited.Account, false
	}
	if s.cfg.TLS != nil {
		c.Conn = tls.Server(raw, s.cfg.TLS)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	full := c.refused && (s.turnedAway >= maxTurnedAway || s.cfg.TLS != nil) // a handshake costs too much
	if full || s.stopping.Err() != nil {
		_ = raw.Close() // nothing was sent
		return
	}
	serve := c.serve
	if c.refused {
		serve = c.turnAway
		s.turnedAway++
	}
	s.conns[c] = struct{}{}
	s.running.Go(func() {
		defer s.remove(c)
		defer c.recovered()
		c.finish(serve())
	})
}

// remove closes c and releases all that it holds.
func (s *Server) remove(c *conn) {
	_ = c.raw.Close() // all replies were written
	s.counts.longBytes.Add(-c.longBytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if c.refused {
		s.turnedAway--
	}
}

// Shutdown stops accepting, and ends the open connections after it has answered the
// requests that arrive within the next 100 ms. It closes connections that are still
// open when ctx ends, and returns when all are closed. Serve returns as well.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	if s.stopping.Err() == nil {
		s.deadline = time.Now().Add(farewell)
		s.stop()
	}
	if s.port.Listener != nil {
		_ = s.port.Close() // Serve returns the error of a broken listener
	}
	conns := slices.Collect(maps.Keys(s.conns)) // start adds none from now on
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.raw.SetReadDeadline(s.deadline) // else Read returns the same error
	}
	cut := context.AfterFunc(ctx, func() {
		s.cancel()
		for _, c := range conns {
			_ = c.raw.Close() // its reads and writes fail
		}
	})
	s.running.Wait()
	cut()
	s.cancel()
}
