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

// connectTimeout is how long each connection may take to come up.
const connectTimeout = 5 * time.Second

// window is the flow control window of connections and calls. It is fixed, as
// grpc-go's own sends the server pings to find a better one.
const window = 1 << 20

// connection is one connection to the server.
type connection struct {
	*grpc.ClientConn
	timeout time.Duration
}

// dial opens all connections. Those that it returns are the caller's to close,
// also beside an error.
func dial(ctx context.Context, cfg *Config) ([]*connection, error) {
	creds := cfg.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	var conns []*connection
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
		conns = append(conns, &connection{conn, cfg.Timeout})
		if err := reach(ctx, conn); err != nil {
			return conns, fmt.Errorf("cannot reach %s: %s (start a server there or name another address; with TLS on one side only, this fails too)",
				cfg.Addr, status.Convert(err).Message())
		}
	}
	return conns, nil
}

// reach connects. Only a call learns why that fails, so it makes one, which
// charges nobody; what the server answers does not matter.
func reach(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled: // most likely nobody answered
		if conn.GetState() != connectivity.Ready {
			return err
		}
	}
	return nil
}

// caller makes calls one after the other.
func (c *connection) caller(l *load, seed uint64) caller {
	pick := l.picker(seed, len(l.messages))
	opts := []grpc.CallOption{grpc.ForceCodecV2(codec{})}
	var a answer
	return func(n uint64) outcome {
		ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
		defer cancel()
		err := c.Invoke(ctx, pb.RateLimitService_ShouldRateLimit_FullMethodName, &l.messages[pick(n)], &a, opts...)
		if err != nil {
			return outcome{failed: status.Code(err), err: err}
		}
		return outcome{failed: codes.OK, answer: a.code}
	}
}
