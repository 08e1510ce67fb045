package conformance

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"ratelimit/src/frontend/h2"
)

// programs are what the test binary runs as a child of a test. The first argument is the name; they get the others.
var programs = map[string]func(args []string) error{
	"interop-client":     runInteropClient,
	"conformance-server": runConformanceServer,
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && programs[os.Args[1]] != nil {
		if err := programs[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// newServer returns a server that reports panics and clients that violate the protocol.
func newServer(cfg h2.Config, report func(format string, args ...any)) *h2.Server {
	cfg.OpenAccount = func(func()) h2.Account { return noAccount{} }
	cfg.ConnContext = func(ctx context.Context, _ h2.Account) context.Context { return ctx }
	cfg.OnPanic = func(value any, stack []byte) { report("panic: %v\n%s", value, stack) }
	cfg.OnProtocolError = func(_ net.Addr, err error) { report("the server closed a connection: %v", err) }
	if cfg.IsLarge == nil {
		cfg.IsLarge = func([]byte) bool { return false }
	}
	return h2.NewServer(cfg)
}

// newGRPC returns a server of grpc-go for the Handler of an h2.Server.
func newGRPC(options ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(options, grpc.StreamInterceptor(
		func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return handler(service, &pacedStream{stream})
		}))...)
}

// pacedStream asks the h2.Server for each message.
type pacedStream struct{ grpc.ServerStream }

func (s *pacedStream) RecvMsg(m any) error {
	h2.AwaitMessage(s.Context(), math.MaxInt32)
	h2.AcceptMessage(s.Context())
	return s.ServerStream.RecvMsg(m)
}

// handle lets cfg pass requests on to g.
func handle(cfg *h2.Config, g *grpc.Server) {
	services := g.GetServiceInfo()
	cfg.Handler = g
	cfg.KindOf = func(path string) h2.MethodKind {
		name, method, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		for _, m := range services[name].Methods {
			switch {
			case m.Name != method:
			case m.IsClientStream || m.IsServerStream:
				return h2.StreamMethod
			default:
				return h2.UnaryMethod
			}
		}
		return h2.UnknownMethod
	}
}

// noAccount allows any amount of memory.
type noAccount struct{}

func (noAccount) HoldBytes(int64) bool { return true }
func (noAccount) ReleaseBytes(int64)   {}
func (noAccount) Close()               {}
