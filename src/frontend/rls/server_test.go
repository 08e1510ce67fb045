package rls

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"ratelimit/src/backend"
	"ratelimit/src/frontend/h2"
)

func TestHealth(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		srv, conn := dial(t, start(t, nil), cfg)
		client := healthpb.NewHealthClient(conn)
		check := func(want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			for _, name := range []string{"", HealthServiceName} {
				resp, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
				if err != nil || resp.GetStatus() != want {
					t.Errorf("%q: got %v, %v, want %v", name, resp.GetStatus(), err, want)
				}
			}
		}
		check(healthpb.HealthCheckResponse_NOT_SERVING)
		srv.SetServing(true)
		check(healthpb.HealthCheckResponse_SERVING)
		srv.SetServing(false)
		check(healthpb.HealthCheckResponse_NOT_SERVING)
		if _, err := client.Check(t.Context(),
			&healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
			t.Errorf("another name: %v, want NotFound", err)
		}
	})
}

// expectShutdownInTime shuts srv down, which must not have to cut off its streams.
func expectShutdownInTime(t *testing.T, srv *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	srv.Shutdown(ctx)
	if ctx.Err() != nil {
		t.Error("the stream had to be cut off")
	}
}

// A watch that stays open does not hold up a shutdown.
func TestShutdownEndsWatches(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		srv, conn := dial(t, start(t, nil), cfg)
		stream, err := healthpb.NewHealthClient(conn).Watch(t.Context(),
			&healthpb.HealthCheckRequest{Service: HealthServiceName})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		expectShutdownInTime(t, srv)
		if _, err := stream.Recv(); err == nil {
			t.Error("the watch goes on")
		}
	})
}

// Nor does a reflection stream, which tells the services, and whose handler waits for its client.
func TestReflection(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		srv, conn := dial(t, start(t, nil), cfg)
		stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
		}); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		names := fmt.Sprint(resp.GetListServicesResponse().GetService())
		if !strings.Contains(names, "envoy.service.ratelimit.v3.RateLimitService") ||
			!strings.Contains(names, "grpc.health.v1.Health") {
			t.Errorf("services: %s", names)
		}
		expectShutdownInTime(t, srv)
	})
}

// tellingListener tells when it has accepted a connection.
type tellingListener struct {
	net.Listener
	accepted chan<- struct{}
}

func (l tellingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.accepted <- struct{}{}
	}
	return conn, err
}

// Nor does a connection that never sends a byte: grpc-go would wait for it.
func TestShutdownClosesSilentConnections(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		l, accepted := listen(t, "tcp", "127.0.0.1:0"), make(chan struct{}, 1)
		srv := serve(t, start(t, nil).Service, cfg, tellingListener{l, accepted})
		silent, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = silent.Close() }()
		<-accepted
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		begun := time.Now()
		srv.Shutdown(ctx)
		if took := time.Since(begun); took > h2.HandshakeTimeout-time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A server that is told to stop before it serves does not complain.
func TestShutdownBeforeServe(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		srv := NewServer(start(t, nil).Service, cfg)
		srv.Shutdown(t.Context())
		if err := srv.Serve(listen(t, "tcp", "127.0.0.1:0")); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// A call that never ends is cut off when the time for it is over.
func TestShutdownCutsOffCalls(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		entered, leave := make(chan struct{}), make(chan struct{})
		srv, conn := dial(t, start(t, broken{func(*backend.Batch) error {
			close(entered)
			<-leave
			return nil
		}}), cfg)
		result := make(chan error, 1)
		go func() {
			_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request(descriptor("ip", "1")))
			result <- err
		}()
		<-entered
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		done := make(chan struct{})
		go func() {
			srv.Shutdown(ctx)
			close(done)
		}()
		if err := <-result; status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
		close(leave) // grpc-go waits for handlers
		<-done
	})
}

func TestUnixSocket(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		l := listen(t, "unix", t.TempDir()+"/s")
		serve(t, start(t, nil).Service, cfg, l)
		client := pb.NewRateLimitServiceClient(connect(t, "unix://"+l.Addr().String()))
		if _, err := client.ShouldRateLimit(t.Context(), request(descriptor("ip", "1"))); err != nil {
			t.Error(err)
		}
	})
}
