package rls

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"path"
	"runtime"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/h2guard"
)

// HealthName is the service name under which Envoy deployments ask for gRPC
// health; the empty name answers the same.
const HealthName = "ratelimit"

// ServerConfig tunes the gRPC server. Its zero value is what grpc-go does by
// itself, in plain text.
type ServerConfig struct {
	// TLS, if set, protects every connection.
	TLS *tls.Config
	// MaxMessage is the size of the largest request in bytes; 0: 4 MiB.
	MaxMessage int
	// MaxStreams is how many calls one connection may have at a time; 0: any number.
	MaxStreams uint32
	// KeepaliveTime is how long a client may be silent before it is pinged; it then has
	// 20 s to answer. 0: no pings.
	KeepaliveTime time.Duration
	// KeepaliveMin is the shortest time between two pings of a client, also while it has no
	// calls; 0: none.
	KeepaliveMin time.Duration
	// MaxConnectionAge is the age at which a client is asked to close its connection; 0:
	// never.
	MaxConnectionAge time.Duration
	// MaxConnectionAgeGrace is how long calls may run after that; 0: no limit.
	MaxConnectionAgeGrace time.Duration
	// Stats, if set, makes the server spans of tracing.
	Stats stats.Handler
	// Reflection offers the services' descriptors to tools such as grpcurl.
	Reflection bool
	// Budget is charged with what is held for clients; nil: no bound.
	Budget *connlimit.Budget
}

// handshakeTimeout bounds the handshake of a client. grpc-go allows two minutes.
const handshakeTimeout = 5 * time.Second

// StreamWorkers returns how many goroutines wait for calls; if all are busy, a call gets a
// new one. A worker's stack has already grown: with 64 calls in flight on two cores, a call
// cost 11.8 µs of CPU with 16 workers and 14.6 µs without.
func StreamWorkers() uint32 { return uint32(max(16, 4*runtime.GOMAXPROCS(0))) }

// headerBytes bounds the headers of a call, as for HTTP callers. grpc-go allows 16 MiB.
const headerBytes = 64 << 10

// Server is the gRPC server: the Service, health and reflection.
type Server struct {
	// Guard limits clients.
	Guard  *h2guard.Guard
	grpc   *grpc.Server
	health *health.Server
	// closed ends open streams, cut all connections.
	closed, cut              context.Context
	closeStreams, closeConns context.CancelFunc
}

// NewServer returns a server without a listener, whose health is NOT_SERVING.
func NewServer(s *Service, cfg ServerConfig) *Server {
	srv := &Server{
		Guard:  h2guard.New(cfg.Budget),
		health: health.NewServer(),
	}
	srv.closed, srv.closeStreams = context.WithCancel(context.Background())
	srv.cut, srv.closeConns = context.WithCancel(context.Background())
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.NumStreamWorkers(StreamWorkers()),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxHeaderListSize(headerBytes),
		grpc.MaxRecvMsgSize(cmp.Or(cfg.MaxMessage, 4<<20)),
		grpc.MaxConcurrentStreams(cfg.MaxStreams), // 0: any number
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             max(cfg.KeepaliveMin, 1), // 0 would be 5 minutes
			PermitWithoutStream: true,
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time:                  cmp.Or(cfg.KeepaliveTime, math.MaxInt64), // 0 would be 2 hours
			MaxConnectionAge:      cfg.MaxConnectionAge,
			MaxConnectionAgeGrace: cfg.MaxConnectionAgeGrace,
		}),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(srv.stream(s)),
	}
	creds := insecure.NewCredentials()
	if cfg.TLS != nil {
		creds = credentials.NewTLS(cfg.TLS)
	}
	options = append(options, grpc.Creds(guardedCredentials{creds, srv.Guard}))
	if cfg.Stats != nil {
		options = append(options, grpc.StatsHandler(cfg.Stats))
	}
	srv.grpc = grpc.NewServer(options...)
	services := registrar{srv.grpc}
	services.RegisterService(s.serviceDesc(), s)
	healthpb.RegisterHealthServer(services, srv.health)
	if cfg.Reflection {
		reflection.Register(services)
	}
	srv.SetServing(false)
	return srv
}

// SetServing sets what health checks and health watches report.
func (srv *Server) SetServing(ok bool) {
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		state = healthpb.HealthCheckResponse_SERVING
	}
	srv.health.SetServingStatus("", state)
	srv.health.SetServingStatus(HealthName, state)
}

// Serve answers calls on l until Shutdown. It is called once.
func (srv *Server) Serve(l net.Listener) error {
	if err := srv.grpc.Serve(closingListener{l, srv.cut}); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("rls: %w", err)
	}
	return nil
}

// Shutdown takes no new calls and waits for running calls until ctx ends; then it closes
// their connections. Streams end at once: health watches and reflection would not end by
// themselves.
func (srv *Server) Shutdown(ctx context.Context) {
	srv.closeStreams()
	stopped := make(chan struct{})
	go func() {
		srv.grpc.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
		srv.closeConns() // also those that Stop would wait for
		srv.grpc.Stop()
	}
}

// stream runs a long call with a context that ends with the server. It does not wait for a
// handler that waits for its client: its next use of the stream fails.
func (srv *Server) stream(s *Service) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if err := refuseCompressed(stream.Context()); err != nil {
			return err
		}
		conn := guarded(stream.Context())
		if !conn.OpenLong(longBytes) {
			return status.Errorf(codes.ResourceExhausted, "too many streaming calls: %d are allowed on a connection, and fewer if all connections have many", h2guard.MaxLong)
		}
		defer conn.CloseLong(longBytes)
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() {
			var err error
			defer func() { done <- err }()
			defer s.recovered(&err)
			err = handler(service, &longCall{stream, ctx, conn})
		}()
		select {
		case err := <-done:
			return err
		case <-srv.closed.Done():
			cancel()
		}
		select {
		case err := <-done:
			return err
		case <-time.After(100 * time.Millisecond):
			return status.Error(codes.Unavailable, "shutting down")
		}
	}
}

// PanicError is the error that Config.OnError gets after a panic in a call.
type PanicError struct {
	Value any
	Stack []byte
}

// Error returns the value of the panic, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("rls: panic: %v", e.Value) }

func (s *Service) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
	begun := time.Now()
	defer func() { s.cfg.OnCall("grpc", path.Base(info.FullMethod), time.Since(begun)) }()
	defer s.recovered(&err)
	return handler(ctx, req)
}

func (s *Service) recovered(err *error) {
	if p := recover(); p != nil {
		s.cfg.OnError(&PanicError{p, debug.Stack()})
		*err = status.Error(codes.Internal, internalError)
	}
}
