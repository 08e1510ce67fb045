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

// window is the flow control window of connections and calls. It is fixed, because grpc-go pings the server to find a better one.
const window = 1 << 20

// dial opens all connections. The caller closes those it returns, also with an error.
func dial(ctx context.Context, cfg *Config) ([]*grpc.ClientConn, error) {
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
			grpc.WithInitialWindowSize(window),
			grpc.WithInitialConnWindowSize(window))
		if err != nil {
			return conns, err
		}
		conns = append(conns, conn)
		if err := reach(ctx, conn); err != nil {
			return conns, fmt.Errorf("cannot reach %s: %s (start a server there or name another address; with TLS on one side only, this fails too)",
				cfg.Addr, status.Convert(err).Message())
		}
	}
	return conns, nil
}

// reach connects. It makes a call, since only a call returns why a connection failed. It ignores the answer.
func reach(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled: // probably no server answered
		if conn.GetState() != connectivity.Ready {
			return err
		}
	}
	return nil
}

// newCaller returns a function that makes one call at a time over conn.
func newCaller(conn *grpc.ClientConn, cfg *Config, l *load) caller {
	pick := l.picker(cfg.Seed, len(l.messages))
	opts := []grpc.CallOption{grpc.ForceCodecV2(codec{})}
	var a answer
	return func(n uint64) outcome {
		ctx, cancel := context.WithTimeout(context.Background(), cfg.Timeout)
		defer cancel()
		err := conn.Invoke(ctx, pb.RateLimitService_ShouldRateLimit_FullMethodName, &l.messages[pick(n)], &a, opts...)
		return outcome{answer: a.code, err: err}
	}
}
