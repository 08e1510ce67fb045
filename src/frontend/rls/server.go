package rls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/h2"
)

// HealthServiceName is the service name for health checks of Envoy deployments. An empty name works, too.
const HealthServiceName = "ratelimit"

// ServerConfig configures the gRPC server. Its zero value means grpc-go's defaults without TLS.
type ServerConfig struct {
	// ConnConfig is for both engines. IsWrongProtocol tells which errors of OnProtocolError need a change of settings.
	// grpc-go's engine reports only those.
	h2.ConnConfig
	// StatsHandler, if set, makes the server spans of tracing.
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
}

// IsWrongProtocol reports whether err, of OnProtocolError, says that a client does not speak what the port does. Its
// text says what to do.
func IsWrongProtocol(err error) bool {
	_, wrong := errors.AsType[*h2.WrongProtocolError](err)
	return wrong
}

// Server is the gRPC server of a Service, of health checks and of reflection.
type Server struct {
	engine
	service      *Service
	healthServer *health.Server
	longCalls    longCallBound
	streamsCtx   context.Context // the context of all streams.
	closeStreams context.CancelFunc
}

// engine accepts connections, and speaks HTTP/2 with their clients.
type engine interface {
	// Serve answers calls on l until Shutdown; then it returns nil. It may be called once.
	Serve(l net.Listener) error
	// Shutdown refuses new calls, and waits for running ones; when ctx ends, it closes their connections.
	Shutdown(ctx context.Context)
	// addTo sets the figures that the engine counts.
	addTo(st *Stats)
}

// Stats returns the figures of connections that do harm.
func (srv *Server) Stats() Stats {
	st := Stats{RefusedLongCalls: srv.longCalls.refused.Load()}
	srv.addTo(&st)
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
	srv := &Server{service: s, healthServer: health.NewServer(), longCalls: longCallBound{budget: cfg.MemoryBudget}}
	srv.streamsCtx, srv.closeStreams = context.WithCancel(context.Background())
	newServer := func(options ...grpc.ServerOption) *grpc.Server {
		server := grpc.NewServer(append(srv.callOptions(cfg), options...)...)
		srv.register(guardedRegistrar{server}, cfg)
		return server
	}
	if cfg.UseGRPCGo {
		srv.engine = newGRPCGoEngine(cfg, newServer)
	} else {
		srv.engine = newH2Engine(s, cfg, newServer(grpc.WaitForHandlers(true)))
	}
	srv.SetServing(false)
	return srv
}

// callOptions returns the options for the calls of grpc-go's server.
func (srv *Server) callOptions(cfg ServerConfig) []grpc.ServerOption {
	maxMessageBytes := cmp.Or(cfg.MaxMessageBytes, 4<<20)
	gzip := newGzipDecompressor(maxMessageBytes)
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessageBytes),
		//lint:ignore SA1019 its successor, encoding.RegisterCompressor, is for all servers and clients of the process
		grpc.RPCDecompressor(gzip),
		grpc.UnaryInterceptor(srv.service.interceptUnary),
		grpc.StreamInterceptor(srv.interceptStreams(gzip)),
	}
	if cfg.StatsHandler != nil {
		options = append(options, grpc.StatsHandler(cfg.StatsHandler))
	}
	return options
}

// register adds all services.
func (srv *Server) register(services guardedRegistrar, cfg ServerConfig) {
	services.RegisterService(srv.service.serviceDesc(), srv.service)
	healthpb.RegisterHealthServer(services, srv.healthServer)
	if cfg.Register != nil {
		cfg.Register(services)
	}
	if cfg.ReflectionEnabled {
		reflection.Register(services)
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

// Shutdown refuses new calls and ends streams, because health watches and reflection would not end by themselves. It
// waits for running calls; when ctx ends, it closes their connections.
func (srv *Server) Shutdown(ctx context.Context) {
	srv.closeStreams()
	srv.engine.Shutdown(ctx)
}

// endsBefore runs f in a goroutine. It returns true when f has ended, or false when ctx ends, which leaves f behind.
func endsBefore(ctx context.Context, f func()) bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	select {
	case <-ended:
		return true
	case <-ctx.Done():
		return false
	}
}

// interceptStreams returns the interceptor of long calls. Their context ends with the server. A handler that then waits
// for its client is left behind, and its next use of the stream fails.
func (srv *Server) interceptStreams(gzip *gzipDecompressor) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		isCompressed, err := prepareCompression(stream.Context())
		if err != nil {
			return err
		}
		conn := callerConnOf(stream.Context())
		if !srv.longCalls.open(conn) {
			return errTooManyLongCalls
		}
		defer srv.longCalls.close(conn)
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		call := &longCall{ServerStream: stream, ctx: ctx, conn: conn, turns: srv.service.largeRequests}
		if isCompressed {
			call.gzip = gzip
		}
		done := make(chan error, 1)
		go func() {
			var err error
			defer func() { done <- err }()
			defer call.releaseMessage()
			defer srv.service.recoverPanic(&err)
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
func (s *Service) interceptUnary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
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
