package bench

import (
	"context"
	"fmt"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// connectTimeout bounds the making of each connection.
const connectTimeout = 5 * time.Second

// flowWindow is the flow control window, in bytes, of connections and calls. Without a fixed one, grpc-go would ping the server to
// find it.
const flowWindow = 1 << 20

// connect opens all connections. The caller closes those that it returns, also with an error.
func connect(ctx context.Context, cfg *Config) ([]*grpc.ClientConn, error) {
	creds := cfg.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	var conns []*grpc.ClientConn
	for range cfg.Connections {
		conn, err := grpc.NewClient(cfg.Addr,
			grpc.WithTransportCredentials(creds),
			grpc.WithDisableServiceConfig(),
			grpc.WithDisableRetry(),
			grpc.WithInitialWindowSize(flowWindow),
			grpc.WithInitialConnWindowSize(flowWindow))
		if err != nil {
			return conns, err
		}
		conns = append(conns, conn)
		if err := awaitServer(ctx, conn); err != nil {
			return conns, fmt.Errorf("cannot reach %s: %s (start a server there or name another address; with TLS on one side only, this fails too)",
				cfg.Addr, status.Convert(err).Message())
		}
	}
	return conns, nil
}

// awaitServer waits until conn is connected. It makes a call, because only a call returns why a connection failed, and ignores the
// answer.
func awaitServer(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled: // If the connection is ready, a server has answered with such a code.
		if conn.GetState() != connectivity.Ready {
			return err
		}
	}
	return nil
}

// newCall returns a function that makes one call at a time over conn.
func newCall(conn *grpc.ClientConn, cfg *Config, l *load) callFunc {
	pick := l.newPicker(cfg.Seed, len(l.messages))
	opts := []grpc.CallOption{grpc.ForceCodecV2(codec{})}
	var code pb.RateLimitResponse_Code
	return func(n uint64) (pb.RateLimitResponse_Code, error) {
		ctx, cancel := context.WithTimeout(context.Background(), cfg.Timeout)
		defer cancel()
		err := conn.Invoke(ctx, pb.RateLimitService_ShouldRateLimit_FullMethodName, &l.messages[pick(n)], &code, opts...)
		return code, err
	}
}
