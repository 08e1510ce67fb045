package bench

import (
	"context"
	"fmt"
	"net"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
)

// empty answers OK to everything.
type empty struct {
	pb.UnimplementedRateLimitServiceServer
}

func (empty) ShouldRateLimit(context.Context, *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}, nil
}

// ServeNull serves on l, until ctx ends, a handler that answers OK. It shows the cost of grpc-go and protobuf alone. workers is
// the value of grpc.NumStreamWorkers; 0: a goroutine for each call.
func ServeNull(ctx context.Context, l net.Listener, workers uint32) error {
	srv := grpc.NewServer(grpc.NumStreamWorkers(workers))
	pb.RegisterRateLimitServiceServer(srv, empty{})
	defer context.AfterFunc(ctx, srv.Stop)()
	if err := srv.Serve(l); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}
