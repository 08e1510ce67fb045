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
	"ratelimit/src/frontend/h2"
	"ratelimit/src/frontend/h2guard"
)

// HealthServiceName is the service name for health checks of Envoy deployments. An empty name works, too.
const HealthServiceName = "ratelimit"

// ServerConfig configures the gRPC server. Its zero value means grpc-go's defaults without TLS.
type ServerConfig struct {
	// TLS, if set, encrypts every connection.
	TLS *tls.Config
	// MaxMessageBytes is the size of the largest request in bytes. Defaults to 4 MiB.
	MaxMessageBytes int
	// MaxCallsPerConnection is how many calls one connection may have at a time. 0 means any number.
	MaxCallsPerConnection uint32
	// MaxClientSilence is how long a client may be silent before the server pings it. The client
	// then has 20 s to answer. 0 means no pings.
	MaxClientSilence time.Duration
	// MinClientPingInterval is the shortest time between two pings of a client. 0 means no bound.
	MinClientPingInterval time.Duration
	// MaxConnectionAge is the age at which clients are asked to reconnect. 0 means never.
	MaxConnectionAge time.Duration
	// MaxConnectionAgeGrace is how long calls may run after that. 0 means any time.
	MaxConnectionAgeGrace time.Duration
	// Stats, if set, makes the server spans of tracing.
	StatsHandler stats.Handler
	// ReflectionEnabled offers the services' descriptors to tools such as grpcurl.
	ReflectionEnabled bool
	// Register, if set, adds services whose calls are streams. Their handlers get messages as protobuf messages or as
	// RawMessage.
	Register func(grpc.ServiceRegistrar)
	// MemoryBudget is charged for the memory that clients use. If it is nil, there is no bound.
	MemoryBudget *connlimit.MemoryBudget
	// UseGRPCGo serves all calls with grpc-go's HTTP/2 server instead of package h2.
	UseGRPCGo bool
	// OnProtocolError, if set, gets the reason for which package h2 has ended a connection. It must be fast.
	// IsWrongProtocol tells which of these errors need a change of settings; they come with UseGRPCGo, too.
	OnProtocolError func(client net.Addr, err error)
}

// IsWrongProtocol reports whether err, of OnProtocolError, says that a client does not speak what the port does. Its
// text says what to do.
func IsWrongProtocol(err error) bool {
	_, wrong := errors.AsType[*h2.WrongProtocolError](err)
	return wrong
}

// handshakeTimeout bounds the TLS handshake of a client. grpc-go's default is two minutes.
const handshakeTimeout = 5 * time.Second

// StreamWorkerCount returns how many goroutines wait for calls. If all are busy, a call starts a new one. A worker's
// stack has already grown: with 64 calls in flight on two cores, a call cost 11.8 µs of CPU with 16 workers and 14.6 µs
// without.
func StreamWorkerCount() uint32 { return uint32(max(16, 4*runtime.GOMAXPROCS(0))) }

// maxHeaderBytes bounds the headers of a call, as for HTTP callers. grpc-go's default is 16 MiB.
const maxHeaderBytes = 64 << 10

// Server is the gRPC server of a Service, of health checks and of reflection.
type Server struct {
	guard        *h2guard.Guard // limits what clients can make grpcServer hold and do.
	grpcServer   *grpc.Server
	engine       *h2.Server // nil with ServerConfig.UseGRPCGo.
	healthServer *health.Server
	// streamsCtx is the context of all streams, connsCtx that of all connections.
	streamsCtx, connsCtx     context.Context
	closeStreams, closeConns context.CancelFunc
}

// Stats returns the figures of connections that do harm.
func (srv *Server) Stats() Stats {
	st := Stats{
		StalledConnections: srv.guard.StalledConnections.Load(),
		SlowedReads:        srv.guard.SlowedReads.Load(),
		RefusedLongCalls:   srv.guard.RefusedLongCalls.Load(),
	}
	if e := srv.engine; e != nil {
		st.StalledConnections += e.Stalled.Load()
		st.FloodingConnections, st.InvalidConnections = e.Flooding.Load(), e.Invalid.Load()
	}
	return st
}

// Stats are figures of connections that do harm, since the start.
type Stats struct {
	// StalledConnections, FloodingConnections and InvalidConnections were closed: because their client did not
	// read, caused work without calls, or violated HTTP/2 in another way. grpc-go does not count the last two.
	StalledConnections, FloodingConnections, InvalidConnections int64
	// SlowedReads are reads that waited because the client of grpc-go's server sent too many frames without calls.
	SlowedReads int64
	// RefusedLongCalls are streaming calls beyond the number that is allowed.
	RefusedLongCalls int64
}

// NewServer returns a server without a listener, whose health is NOT_SERVING.
func NewServer(s *Service, cfg ServerConfig) *Server {
	if cfg.OnProtocolError == nil {
		cfg.OnProtocolError = func(net.Addr, error) {}
	}
	srv := &Server{
		guard:        h2guard.New(cfg.MemoryBudget),
		healthServer: health.NewServer(),
	}
	srv.streamsCtx, srv.closeStreams = context.WithCancel(context.Background())
	srv.connsCtx, srv.closeConns = context.WithCancel(context.Background())
	maxMessageBytes := cmp.Or(cfg.MaxMessageBytes, 4<<20)
	gzip := newGzipDecompressor(maxMessageBytes)
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessageBytes),
		//lint:ignore SA1019 its successor, encoding.RegisterCompressor, is for all servers and clients of the process
		grpc.RPCDecompressor(gzip),
		grpc.UnaryInterceptor(s.interceptUnary),
		grpc.StreamInterceptor(srv.interceptStreams(s, gzip)),
	}
	if cfg.UseGRPCGo {
		options = append(options, srv.connectionOptions(cfg)...)
	} else {
		options = append(options, grpc.WaitForHandlers(true))
	}
	if cfg.StatsHandler != nil {
		options = append(options, grpc.StatsHandler(cfg.StatsHandler))
	}
	srv.grpcServer = grpc.NewServer(options...)
	services := guardedRegistrar{srv.grpcServer}
	services.RegisterService(s.serviceDesc(), s)
	healthpb.RegisterHealthServer(services, srv.healthServer)
	if cfg.Register != nil {
		cfg.Register(services)
	}
	if cfg.ReflectionEnabled {
		reflection.Register(services)
	}
	if !cfg.UseGRPCGo {
		srv.engine = srv.newEngine(s, cfg)
	}
	srv.SetServing(false)
	return srv
}

// connectionOptions returns the options for grpc-go's HTTP/2 server.
func (srv *Server) connectionOptions(cfg ServerConfig) []grpc.ServerOption {
	creds := insecure.NewCredentials()
	if cfg.TLS != nil {
		creds = chargedTLS{credentials.NewTLS(cfg.TLS), cfg.MemoryBudget}
	}
	return []grpc.ServerOption{
		grpc.Creds(guardedCredentials{creds, srv.guard, srv.connsCtx, cfg.OnProtocolError}),
		grpc.NumStreamWorkers(StreamWorkerCount()),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(cfg.MaxCallsPerConnection),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             max(cfg.MinClientPingInterval, 1), // grpc-go replaces a MinTime of 0 by 5 minutes.
			PermitWithoutStream: true,
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time:                  cmp.Or(cfg.MaxClientSilence, math.MaxInt64), // grpc-go replaces a Time of 0 by 2 hours.
			MaxConnectionAge:      cfg.MaxConnectionAge,
			MaxConnectionAgeGrace: cfg.MaxConnectionAgeGrace,
		}),
	}
}

// SetServing sets what health checks and health watches report.
func (srv *Server) SetServing(ok bool) {
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if ok {
		state = healthpb.HealthCheckResponse_SERVING
	}
	srv.healthServer.SetServingStatus("", state)
	srv.healthServer.SetServingStatus(HealthServiceName, state)
}

// Serve answers calls on l until Shutdown. It may be called once.
func (srv *Server) Serve(l net.Listener) error {
	if srv.engine != nil {
		return srv.engine.Serve(l)
	}
	if err := srv.grpcServer.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("rls: %w", err)
	}
	return nil
}

// Shutdown refuses new calls and ends streams, because health watches and reflection would not
// end by themselves. It waits for running calls; when ctx ends, it closes their connections.
func (srv *Server) Shutdown(ctx context.Context) {
	srv.closeStreams()
	if srv.engine != nil {
		srv.engine.Shutdown(ctx)
		srv.awaitHandlers()
		return
	}
	stopped := make(chan struct{})
	go func() {
		srv.grpcServer.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
		srv.closeConns()
		srv.grpcServer.Stop()
	}
}

// awaitHandlers waits until the handlers of grpc-go's server have returned, for handlerPatience at most. After the
// answer of a call its handler still ends the span.
func (srv *Server) awaitHandlers() {
	stopped := make(chan struct{})
	go func() {
		srv.grpcServer.Stop() // It waits for handlers because of grpc.WaitForHandlers.
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(handlerPatience):
	}
}

// handlerPatience is how long a shutdown waits for handlers whose calls are answered.
const handlerPatience = time.Second

// interceptStreams returns the interceptor of long calls. Their context ends with the server. A handler that
// then waits for its client is left behind, and its next use of the stream fails.
func (srv *Server) interceptStreams(s *Service, gzip *gzipDecompressor) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		isCompressed, err := prepareCompression(stream.Context())
		if err != nil {
			return err
		}
		longCalls := longCallsOf(stream.Context())
		if !longCalls.Open(longCallMemoryBytes) {
			return status.Errorf(codes.ResourceExhausted,
				"too many streaming calls: %d are allowed on a connection, and fewer if all connections have many",
				h2guard.MaxLongCalls)
		}
		defer longCalls.Close(longCallMemoryBytes)
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		call := &longCall{ServerStream: stream, ctx: ctx, conn: guardedConn(ctx), memory: longCalls, turns: s.largeRequests}
		if isCompressed {
			call.gzip = gzip
		}
		done := make(chan error, 1)
		go func() {
			var err error
			defer func() { done <- err }()
			defer call.releaseMessage()
			defer s.recoverPanic(&err)
			err = handler(service, call)
		}()
		select {
		case err := <-done:
			return err
		case <-srv.streamsCtx.Done():
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

// PanicError is what Config.OnError gets after a panic with Value in a call.
type PanicError struct {
	Value any
	Stack []byte
}

// Error returns the value of the panic, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("rls: panic: %v", e.Value) }

// interceptUnary is the interceptor that reports the duration and the panics of calls.
func (s *Service) interceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (_ any, err error) {
	start := time.Now()
	defer func() { s.cfg.OnCalls("grpc", path.Base(info.FullMethod), 1, time.Since(start)) }()
	defer s.recoverPanic(&err)
	return handler(ctx, req)
}

// recoverPanic reports a panic and sets err. It must be deferred.
func (s *Service) recoverPanic(err *error) {
	if p := recover(); p != nil {
		s.cfg.OnError(&PanicError{p, debug.Stack()})
		*err = status.Error(codes.Internal, internalErrorText)
	}
}
