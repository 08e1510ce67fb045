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
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
)

// Server is go-control-plane's server with its SnapshotCache. It records the requests.
//
// Its package pkg/server/v3 would be shorter, but brings the messages of envoyproxy/ratelimit, and a program can have only one
// set of messages with these names.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	cache cache.SnapshotCache
	sotw  sotw.Server
	stop  func()

	mu       sync.Mutex // guards requests and headers
	requests []*discovery.DiscoveryRequest
	headers  []metadata.MD // headers holds the headers of each stream
}

// Start serves on l, until Stop is called or the test ends.
func Start(t testing.TB, l net.Listener, opts ...grpc.ServerOption) *Server {
	t.Helper()
	s := &Server{cache: cache.NewSnapshotCache(false, cache.IDHash{}, nil)}
	ctx, cancel := context.WithCancel(context.Background())
	s.sotw = sotw.NewServer(ctx, s.cache, nil)
	stop := Serve(t, l, s, opts...)
	s.stop = func() { stop(); cancel() } // connections break before streams end
	t.Cleanup(s.stop)
	return s
}

// Stop breaks all connections and frees the address. A second call has no effect.
func (s *Server) Stop() { s.stop() }

// Serve serves any management server on l. stop breaks all connections; the end of the test calls it too.
func Serve(t testing.TB, l net.Listener, s discovery.AggregatedDiscoveryServiceServer, opts ...grpc.ServerOption) (stop func()) {
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

// StreamAggregatedResources is the one call of the protocol.
func (s *Server) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	headers, _ := metadata.FromIncomingContext(stream.Context())
	s.mu.Lock()
	s.headers = append(s.headers, headers)
	s.mu.Unlock()
	return s.sotw.StreamHandler(&recorded{stream, s}, resource.AnyType)
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

// Requests returns all requests of all streams.
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
	snapshot, err := cache.NewSnapshotWithTTLs(version, map[resource.Type][]types.ResourceWithTTL{resource.RateLimitConfigType: list})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cache.SetSnapshot(context.Background(), node, snapshot); err != nil {
		t.Fatal(err)
	}
}
