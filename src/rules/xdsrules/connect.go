package xdsrules

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	// connectTimeout bounds a connection's making, TLS and all.
	connectTimeout = 20 * time.Second
	// pingEvery is how often a silent server is asked whether it is there.
	// One that is written with grpc-go and says nothing about it (Envoy Gateway)
	// allows that every five minutes, and hangs up if it happens more often.
	pingEvery = 5*time.Minute + 10*time.Second
	// pingTimeout is how long it has to answer.
	pingTimeout = 20 * time.Second
	// sendTimeout is how long it may leave what we send unread.
	sendTimeout = 10 * time.Second
)

// hostGone finds dead hosts sooner than pings of the protocol may: the kernel of
// the other side answers these. 30s of silence, then pingTimeout.
var hostGone = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 4}

// connect prepares a connection, which is made when it is first used. TLS's
// files are read for it.
func (w *Watcher) connect() (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if w.cfg.TLS != nil {
		cfg, err := w.cfg.TLS()
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(cfg)
	}
	return grpc.NewClient(w.cfg.Server, append([]grpc.DialOption{
		grpc.WithTransportCredentials(probing{creds}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.WithDisableServiceConfig(), // it would be looked for in the DNS
		grpc.WithUserAgent("ratelimit"),
	}, w.dial...)...)
}

// probing are credentials that, on the way, have the kernel look whether the
// other side's host is there. A dialer could do that too, but proxies would be
// passed by then.
type probing struct {
	credentials.TransportCredentials
}

// ClientHandshake is called with each new connection.
func (p probing) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(hostGone) // pings find out later, too
	}
	return p.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

// Clone keeps what it is about.
func (p probing) Clone() credentials.TransportCredentials {
	return probing{p.TransportCredentials.Clone()}
}
