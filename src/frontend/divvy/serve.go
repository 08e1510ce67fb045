package divvy

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"
)

// maxTurnedAway is how many connections beyond MaxConns are told so at a time.
// Others are closed without a word.
const maxTurnedAway = 128

// maxPause is the longest pause after a connection that could not be accepted,
// for want of file descriptors, say.
const maxPause = time.Second

// Serve answers clients on l until Shutdown. It is called once.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	defer func() { _ = l.Close() }() // Shutdown may have come before there was one
	pause := time.Duration(0)
	for {
		if s.stopping() {
			return nil
		}
		raw, err := l.Accept()
		if err == nil {
			pause = 0
			s.admit(raw)
			continue
		}
		if s.stopping() {
			return nil
		}
		if passing, ok := err.(interface{ Temporary() bool }); !ok || !passing.Temporary() {
			return fmt.Errorf("divvy: %w", err)
		}
		pause = min(max(5*time.Millisecond, 2*pause), maxPause)
		select {
		case <-time.After(pause):
		case <-s.closing:
		}
	}
}

func (s *Server) stopping() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// admit starts to serve a connection, or to turn it away.
func (s *Server) admit(raw net.Conn) {
	c := &conn{srv: s, raw: raw, Conn: raw}
	if s.cfg.TLS != nil {
		c.Conn = tls.Server(raw, s.cfg.TLS)
	}
	if !s.begin(c) {
		_ = raw.Close() // there is nothing to lose
	}
}

// begin starts the goroutine of c. It reports false if there is to be none.
func (s *Server) begin(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	serve := c.serve
	switch {
	case s.stopping(): // it came too late
		return false
	case s.open >= s.cfg.MaxConns:
		s.refused.Add(1)
		if len(s.conns)-s.open >= maxTurnedAway || s.cfg.TLS != nil { // whose handshake costs too much
			return false
		}
		c.refused = true
		serve = c.turnAway
	default:
		s.accepted.Add(1)
		s.open++
	}
	s.conns[c] = struct{}{}
	s.running.Go(func() { c.run(serve) })
	return true
}

// leave ends what admit has begun.
func (s *Server) leave(c *conn) {
	_ = c.raw.Close() // all that was to be said was said
	s.long.Add(-c.borrowed)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if !c.refused {
		s.open--
	}
}

// Shutdown takes no new connections and ends those that are open: for a moment
// more, requests that were on their way are answered. It waits for that until
// ctx ends, and then cuts off what is left. Serve returns.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	if !s.stopping() {
		close(s.closing)
	}
	listener := s.listener
	s.mu.Unlock()
	if listener != nil {
		_ = listener.Close() // Serve says what is wrong with it
	}
	for _, c := range s.connections() {
		c.end(time.Now().Add(farewell))
	}
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.cancel()
		for _, c := range s.connections() {
			_ = c.raw.Close() // whatever it was about is cut off
		}
		<-done
	}
	s.cancel()
}

// connections are those that are open, in no order.
func (s *Server) connections() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.conns))
}
