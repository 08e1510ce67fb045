package rls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"ratelimit/src/frontend/h2"
	"ratelimit/src/frontend/h2guard"
	"ratelimit/src/frontend/tlsconn"
)

// grpcGoEngine is grpc-go's HTTP/2 server with an h2guard.Conn around each connection, for ServerConfig.UseGRPCGo.
type grpcGoEngine struct {
	*grpc.Server
	guard      *h2guard.Guard
	connsCtx   context.Context // the context of all connections.
	closeConns context.CancelFunc
}

// newGRPCGoEngine returns the engine over the server that newServer makes with further options.
func newGRPCGoEngine(cfg ServerConfig, newServer func(...grpc.ServerOption) *grpc.Server) *grpcGoEngine {
	e := &grpcGoEngine{guard: h2guard.New(cfg.MemoryBudget)}
	e.connsCtx, e.closeConns = context.WithCancel(context.Background())
	e.Server = newServer(
		grpc.Creds(guardedCredentials{insecure.NewCredentials(), e.guard, e.connsCtx, cfg.ConnConfig}),
		grpc.NumStreamWorkers(StreamWorkerCount()),
		grpc.ConnectionTimeout(h2.HandshakeTimeout),
		grpc.MaxHeaderListSize(h2.MaxHeaderBytes),
		grpc.MaxConcurrentStreams(cfg.MaxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             max(cfg.MinClientPingInterval, 1), // grpc-go replaces a MinTime of 0 by 5 minutes.
			PermitWithoutStream: true,
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time:                  cmp.Or(cfg.MaxClientSilence, math.MaxInt64), // grpc-go replaces a Time of 0 by 2 hours.
			MaxConnectionAge:      cfg.MaxConnectionAge,
			MaxConnectionAgeGrace: cfg.MaxConnectionAgeGrace,
		}),
	)
	return e
}

// StreamWorkerCount returns how many goroutines wait for calls. If all are busy, a call starts a new one. A worker's
// stack has already grown: with 64 calls in flight on two cores, a call cost 11.8 µs of CPU with 16 workers and 14.6 µs
// without.
func StreamWorkerCount() uint32 { return uint32(max(16, 4*runtime.GOMAXPROCS(0))) }

// Serve answers calls on l until Shutdown.
func (e *grpcGoEngine) Serve(l net.Listener) error {
	if err := e.Server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("rls: %w", err)
	}
	return nil
}

// Shutdown waits for running calls; when ctx ends, it closes their connections.
func (e *grpcGoEngine) Shutdown(ctx context.Context) {
	if !endsBefore(ctx, e.GracefulStop) {
		e.closeConns()
		e.Stop()
	}
}

func (e *grpcGoEngine) addTo(st *Stats) {
	st.StalledConnections = e.guard.StalledConnections.Load()
	st.SlowedReads = e.guard.SlowedReads.Load()
}

// guardedCredentials wraps each connection in an h2guard.Conn, above its TLS. When connsCtx ends, all connections are
// closed, even those in a handshake, which grpc.Server.Stop would wait for.
type guardedCredentials struct {
	credentials.TransportCredentials // for what servers do not use.
	guard                            *h2guard.Guard
	connsCtx                         context.Context
	cfg                              h2.ConnConfig
}

// guardedAuthInfo tells handlers which connection a call came on.
type guardedAuthInfo struct {
	credentials.CommonAuthInfo
	conn *callerConn
}

// AuthType returns the name of the kind of authentication, which credentials.AuthInfo requires. It is not used.
func (guardedAuthInfo) AuthType() string { return "guarded" }

// ServerHandshake wraps the connection, and does the TLS handshake, if TLS is on.
func (c guardedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := c.guard.WrapConn(c.connsCtx, raw)
	if c.cfg.TLS != nil {
		if err := c.startTLS(conn); err != nil {
			_ = conn.Close() // The error of the handshake says more.
			return nil, nil, err
		}
	}
	conn.Conn = &firstReadConn{Conn: conn.Conn, onError: c.cfg.OnProtocolError}
	return conn, guardedAuthInfo{conn: &callerConn{account: conn.Account, guard: conn}}, nil
}

// startTLS does the TLS handshake.
func (c guardedCredentials) startTLS(conn *h2guard.Conn) error {
	secure := tlsconn.Server(conn.Conn, c.cfg.TLS, conn.Account)
	conn.Conn = secure
	err := secure.HandshakeContext(c.connsCtx)
	if wrong := h2.WrongHandshake(err); wrong != nil {
		c.cfg.OnProtocolError(conn.RemoteAddr(), wrong)
	}
	if err == nil && secure.ConnectionState().NegotiatedProtocol == "" {
		err = errors.New("rls: the client does not offer HTTP/2")
	}
	return err
}

// Clone returns a copy, as credentials.TransportCredentials requires.
func (c guardedCredentials) Clone() credentials.TransportCredentials { return c }

// firstReadConn reports a client that does not speak HTTP/2.
type firstReadConn struct {
	net.Conn
	onError func(client net.Addr, err error) // nil after the first read.
}

// Read reads from the connection.
func (c *firstReadConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.onError != nil && n > 0 {
		if wrong := h2.WrongProtocol(p[:n]); wrong != nil {
			c.onError(c.RemoteAddr(), wrong)
		}
		c.onError = nil
	}
	return n, err
}
