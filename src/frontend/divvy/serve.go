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

// maxTurnedAway is how many connections beyond MaxConns are told so at a time.
// Others are closed without a word.
const maxTurnedAway = 128

// maxPause is the longest pause after a connection that could not be accepted,
// for want of file descriptors, say.
const maxPause = time.Second

// tlsGreeting is how many writes a TLS connection gets before its first reply.
const tlsGreeting = 3

// Serve answers clients on raw until Shutdown. It is called once.
func (s *Server) Serve(raw net.Listener) error {
	cfg := connlimit.Config{Max: s.cfg.MaxConns, Unread: s.cfg.WriteTimeout, Refuse: s.refuse}
	if s.cfg.TLS != nil {
		cfg.Greeting = tlsGreeting
	}
	l := connlimit.New(raw, cfg)
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

// admit starts to serve a connection.
func (s *Server) admit(raw net.Conn) {
	c := s.newConn(raw)
	c.account = s.cfg.Budget.Open(func() {
		s.overBudget.Add(1)
		_ = raw.Close() // its reader says so
	})
	s.start(c, c.serve)
}

// refuse tells a connection for which there is no room so.
func (s *Server) refuse(raw net.Conn) {
	s.refused.Add(1)
	c := s.newConn(raw)
	c.refused = true
	s.start(c, c.turnAway)
}

func (s *Server) newConn(raw net.Conn) *conn {
	c := &conn{srv: s, raw: raw, Conn: raw}
	if s.cfg.TLS != nil {
		c.Conn = tls.Server(raw, s.cfg.TLS)
	}
	return c
}

// start has serve run for c until leave, or closes c.
func (s *Server) start(c *conn, serve func()) {
	if !s.begin(c, serve) {
		c.account.Close()
		_ = c.raw.Close() // there is nothing to lose
	}
}

// begin starts the goroutine of c. It reports false if there is to be none.
func (s *Server) begin(c *conn, serve func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopping(): // it came too late
		return false
	case !c.refused:
		s.accepted.Add(1)
		s.open++
	case len(s.conns)-s.open >= maxTurnedAway || s.cfg.TLS != nil: // whose handshake costs too much
		return false
	}
	s.conns[c] = struct{}{}
	s.running.Go(func() { c.run(serve) })
	return true
}

// leave ends what start has begun.
func (s *Server) leave(c *conn) {
	_ = c.raw.Close() // all that was to be said was said
	c.account.Close()
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
