package pipeline

import (
	"context"
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/tlsconn"
)

const (
	// maxRefusedConns is how many refused connections may wait for their reply. Others are closed at once.
	maxRefusedConns = 128
	// minAcceptPause and maxAcceptPause bound the pause after temporary errors of accept, which doubles each time.
	minAcceptPause, maxAcceptPause = 5 * time.Millisecond, time.Second
	// tlsGreetingWrites is how many writes a TLS connection makes before its first reply.
	tlsGreetingWrites = 3
	// shutdownReadTime is how long Shutdown still reads from connections.
	shutdownReadTime = 100 * time.Millisecond
)

// Serve answers clients on raw until Shutdown. It may be called once.
func (s *Server) Serve(raw net.Listener) error {
	s.listener.Listener = socketListener{raw}
	defer func() { _ = raw.Close() }() // Close may fail, because Shutdown closes raw, too.
	defer context.AfterFunc(s.stoppingCtx, func() { _ = raw.Close() })()
	for pause := time.Duration(0); ; {
		c, err := s.listener.Accept()
		temporary, ok := err.(interface{ Temporary() bool })
		switch {
		case err == nil:
			pause = 0
			s.startConn(c)
		case s.stoppingCtx.Err() != nil:
			return nil
		case !ok || !temporary.Temporary():
			return fmt.Errorf("%s: %w", s.cfg.Protocol, err)
		default:
			pause = min(max(minAcceptPause, 2*pause), maxAcceptPause)
			select {
			case <-time.After(pause):
			case <-s.stoppingCtx.Done():
			}
		}
	}
}

// socketListener accepts connections as *socket, if a poller can serve them.
type socketListener struct{ net.Listener }

// Accept implements net.Listener.
func (l socketListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return newSocket(c), nil
}

// StartConn serves raw on a new goroutine, as if the listener had accepted it.
func (s *Server) StartConn(raw net.Conn) {
	if c := s.listener.AdmitConn(newSocket(raw)); c != nil {
		s.startConn(c)
	}
}

// startConn serves raw on a new goroutine. If raw is not a *connlimit.Conn, the port has refused it.
// If the server stops, or if too many connections were refused, startConn only closes raw.
func (s *Server) startConn(raw net.Conn) {
	c := &conn{Conn: raw, tcpConn: raw, srv: s, isRefused: true}
	if limited, ok := raw.(*connlimit.Conn); ok {
		c.memoryAccount, c.isRefused = limited.MemoryAccount, false
		if s.cfg.TLS == nil {
			c.setSocket(limited.Conn)
		}
	}
	if s.cfg.TLS != nil {
		c.Conn = tlsconn.Server(raw, s.cfg.TLS, c.memoryAccount)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// A refused client gets no TLS handshake, which costs too much.
	full := c.isRefused && (s.refusedConns >= maxRefusedConns || s.cfg.TLS != nil)
	if full || s.stoppingCtx.Err() != nil {
		_ = raw.Close() // The client has sent nothing that must be answered.
		return
	}
	open := c.open
	if c.isRefused {
		open = c.awaitRefusedRequest
		s.refusedConns++
	}
	s.connGoroutines.Go(func() {
		c.watchStop()
		s.serveConn(c, open)
	})
}

// serveConn serves c on the calling goroutine until it ends, or until a poller serves it. begin is called first; if it
// returns a reason, c ends.
func (s *Server) serveConn(c *conn, begin func() error) {
	isPolled := false
	defer func() {
		if p := recover(); p != nil {
			s.cfg.OnPanic(p, debug.Stack())
		}
		if !isPolled {
			c.unwatchStop()
			s.removeConn(c)
		}
	}()
	reason := begin()
	for reason == nil && !isPolled {
		if reason = c.answerRequests(); reason == nil {
			isPolled = c.poll()
		}
	}
	if !isPolled {
		c.sendFaultReply(reason)
	}
}

// removeConn closes c and releases all that it holds.
func (s *Server) removeConn(c *conn) {
	_ = c.tcpConn.Close() // All replies have been written.
	s.largeInputBytes.Add(-c.largeInputBytes)
	s.largeBuffers.put(c.input.buf)
	if c.isRefused {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refusedConns--
	}
}

// Shutdown stops accepting connections. It answers the requests that arrive within the next 100 ms, and closes the
// connections. When ctx ends, it closes those that are still open. It returns when all are closed. Serve returns, too.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock() // From now on, startConn adds no goroutine to connGoroutines.
	if s.stoppingCtx.Err() == nil {
		s.lastReadDeadline = time.Now().Add(shutdownReadTime)
		s.startStopping()
		s.pollers.stop()
	}
	s.mu.Unlock()
	defer context.AfterFunc(ctx, s.cancel)()
	s.connGoroutines.Wait()
	s.cancel()
}
