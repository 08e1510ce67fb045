package xdsrules

import (
	"context"
	"net"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

const (
	// connectTimeout bounds the making of a connection, with its TLS handshake.
	connectTimeout = 20 * time.Second
	// pingEvery is how often a silent server is pinged. A server that uses grpc-go's defaults (Envoy Gateway) closes the
	// connection if pings come more often than every five minutes.
	pingEvery = 5*time.Minute + 10*time.Second
	// pingTimeout is how long the server may take to answer a ping.
	pingTimeout = 20 * time.Second
	// sendTimeout is how long the server may leave a request unread.
	sendTimeout = 10 * time.Second
)

// probes find a dead host sooner than pings: the other side's kernel answers them. They start after 30s of silence, and take
// pingTimeout.
var probes = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 4}

// connect returns a connection, which is made when it is first used. It reads the files of the TLS settings.
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
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(w.cfg.MaxMessage)),
		grpc.WithDisableServiceConfig(), // it would cost DNS queries
		grpc.WithUserAgent("ratelimit"),
	}, w.dial...)...)
}

// probing are credentials that set probes on each connection. A dialer could do that too, but gRPC would then ignore the proxy
// settings.
type probing struct {
	credentials.TransportCredentials
}

// ClientHandshake is called with each new connection.
func (p probing) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(probes) // without probes, pings find a dead host
	}
	return p.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

// Clone copies the credentials.
func (p probing) Clone() credentials.TransportCredentials {
	return probing{p.TransportCredentials.Clone()}
}

// adsStream is one stream of aggregated discovery, state of the world.
type adsStream struct {
	client discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node   *corev3.Node
	cancel context.CancelCauseFunc
	// responses holds the newest response that was not received from it yet. It is closed when the stream has ended; err then
	// says why.
	responses chan *discovery.DiscoveryResponse
	err       error

	accepted string // the version of the last accepted response
}

// openStream opens a stream and asks for all resources. It starts a goroutine, which ends with the stream.
func (w *Watcher) openStream(ctx context.Context, cancel context.CancelCauseFunc, conn *grpc.ClientConn) (*adsStream, error) {
	ctx = metadata.NewOutgoingContext(ctx, metadata.New(w.cfg.Headers))
	client, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	s := &adsStream{client: client, node: w.node, cancel: cancel, responses: make(chan *discovery.DiscoveryResponse, 1)}
	go s.receive()
	s.answer(nil, "")
	return s, nil
}

// receive replaces a response that was not taken yet by the next one: a server may send faster than rules compile. The protocol
// allows that only the newest is acknowledged.
func (s *adsStream) receive() {
	defer close(s.responses)
	for {
		r, err := s.client.Recv()
		if err != nil {
			s.err = err
			return
		}
		select {
		case <-s.responses:
		default:
		}
		s.responses <- r
	}
}

// answer accepts a response, or refuses it if there is a reason. With no response it is the request that begins the stream. It
// ends the stream if the server does not read the answer for sendTimeout. It returns no error: receive gets the cause of any
// failure.
func (s *adsStream) answer(r *discovery.DiscoveryResponse, reason string) {
	request := &discovery.DiscoveryRequest{Node: s.node, TypeUrl: TypeURL, ResponseNonce: r.GetNonce()}
	if reason == "" {
		s.accepted = r.GetVersionInfo()
	} else {
		request.ErrorDetail = &rpcstatus.Status{Message: reason}
	}
	request.VersionInfo = s.accepted
	timeout := time.AfterFunc(sendTimeout, func() { s.cancel(errNotReading) })
	defer timeout.Stop()
	_ = s.client.Send(request)
}
