// Package xdstest has management servers for tests: go-control-plane's, and servers that misbehave.
package xdstest

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
)

// Server is go-control-plane's server, for both variants of the protocol, with its SnapshotCache. It records the
// requests.
//
// Its package pkg/server/v3 would be shorter, but brings the messages of envoyproxy/ratelimit, and a program can have
// only one set of messages with these names.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	snapshots cache.SnapshotCache // nil if the server has another cache.
	sotw      sotw.Server
	delta     delta.Server
	stop      func()

	mu            sync.Mutex // guards requests, deltaRequests and headers
	requests      []*discovery.DiscoveryRequest
	deltaRequests []*discovery.DeltaDiscoveryRequest
	headers       []metadata.MD // the headers of each stream
}

// Start serves on l, until Stop is called or the test ends.
func Start(t testing.TB, l net.Listener, opts ...grpc.ServerOption) *Server {
	t.Helper()
	snapshots := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	s := StartCache(t, l, snapshots, opts...)
	s.snapshots = snapshots
	return s
}

// NewLinearCache returns a cache that has the same resources for all nodes. Each change of a resource is sent alone.
func NewLinearCache() *cache.LinearCache { return cache.NewLinearCache(resource.RateLimitConfigType) }

// StartCache is Start with another cache. Publish cannot be called then.
func StartCache(t testing.TB, l net.Listener, c cache.Cache, opts ...grpc.ServerOption) *Server {
	t.Helper()
	s := new(Server)
	ctx, cancel := context.WithCancel(context.Background())
	s.sotw, s.delta = sotw.NewServer(ctx, c, nil), delta.NewServer(ctx, c, nil)
	stop := Serve(t, l, s, opts...)
	s.stop = func() { stop(); cancel() } // connections break before streams end
	t.Cleanup(s.stop)
	return s
}

// Stop breaks all connections and frees the address. A second call has no effect.
func (s *Server) Stop() { s.stop() }

// Serve serves any management server on l. stop breaks all connections; the end of the test calls it too.
func Serve(t testing.TB, l net.Listener, s discovery.AggregatedDiscoveryServiceServer,
	opts ...grpc.ServerOption,
) (stop func()) {
	t.Helper()
	g := grpc.NewServer(append(opts, grpc.WaitForHandlers(true))...)
	discovery.RegisterAggregatedDiscoveryServiceServer(g, s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := g.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("xdstest: %v", err)
		}
	}()
	stop = func() {
		g.Stop()
		<-ended
	}
	t.Cleanup(stop)
	return stop
}

// StreamAggregatedResources is the call of the variant state of the world.
func (s *Server) StreamAggregatedResources(
	stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	s.recordHeaders(stream.Context())
	return s.sotw.StreamHandler(&recorded{stream, s}, resource.AnyType)
}

// DeltaAggregatedResources is the call of the variant delta.
func (s *Server) DeltaAggregatedResources(
	stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	s.recordHeaders(stream.Context())
	return s.delta.DeltaStreamHandler(&recordedDelta{stream, s}, resource.AnyType)
}

func (s *Server) recordHeaders(ctx context.Context) {
	headers, _ := metadata.FromIncomingContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.headers = append(s.headers, headers)
}

// recordedDelta is a stream of the variant delta that records its requests.
type recordedDelta struct {
	discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	s *Server
}

// Recv receives a request.
func (r *recordedDelta) Recv() (*discovery.DeltaDiscoveryRequest, error) {
	req, err := r.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Recv()
	if err == nil {
		r.s.mu.Lock()
		r.s.deltaRequests = append(r.s.deltaRequests, req)
		r.s.mu.Unlock()
	}
	return req, err
}

// DeltaRequests returns all requests of all streams of the variant delta.
func (s *Server) DeltaRequests() []*discovery.DeltaDiscoveryRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.deltaRequests)
}

// recorded is a stream that records its requests.
type recorded struct {
	discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	s *Server
}

// Recv receives a request.
func (r *recorded) Recv() (*discovery.DiscoveryRequest, error) {
	req, err := r.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Recv()
	if err == nil {
		r.s.mu.Lock()
		r.s.requests = append(r.s.requests, req)
		r.s.mu.Unlock()
	}
	return req, err
}

// Requests returns all requests of all streams of the variant state of the world.
func (s *Server) Requests() []*discovery.DiscoveryRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Headers returns the headers of each stream.
func (s *Server) Headers() []metadata.MD {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.headers)
}

// Publish sends these resources, under a version, to a node and to its later streams.
func (s *Server) Publish(t testing.TB, node, version string, domains ...*configv3.RateLimitConfig) {
	t.Helper()
	list := make([]types.ResourceWithTTL, len(domains))
	for i, d := range domains {
		list[i].Resource = d
	}
	s.PublishTTL(t, node, version, list)
}

// PublishTTL is Publish with times to live.
func (s *Server) PublishTTL(t testing.TB, node, version string, list []types.ResourceWithTTL) {
	t.Helper()
	snapshot, err := cache.NewSnapshotWithTTLs(version,
		map[resource.Type][]types.ResourceWithTTL{resource.RateLimitConfigType: list})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.snapshots.SetSnapshot(context.Background(), node, snapshot); err != nil {
		t.Fatal(err)
	}
}
