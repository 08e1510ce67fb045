package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
)

// server is go-control-plane's server with one snapshot for everybody.
//
// Two things to know before you begin one of your own. Its package pkg/server/v3
// would do what StreamAggregatedResources does here, but it brings
// envoyproxy/ratelimit's messages, which have the names of ours: a program can
// have one of the two. And its LinearCache sends only the resources that changed,
// which state of the world takes for all there are; SnapshotCache sends all.
type server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	cache cache.SnapshotCache
	sotw  sotw.Server
}

// newServer makes a server whose streams end with ctx.
func newServer(ctx context.Context) *server {
	s := &server{cache: cache.NewSnapshotCache(false, everybody{}, nil)}
	s.sotw = sotw.NewServer(ctx, s.cache, journal{})
	return s
}

// StreamAggregatedResources is the one call of the protocol.
func (s *server) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.sotw.StreamHandler(stream, resource.AnyType)
}

// everybody is the same node, whatever its id.
type everybody struct{}

// ID is the key of the snapshot.
func (everybody) ID(*corev3.Node) string { return "" }

// publish has everybody get these domains, under a version that tells their
// content from others: after a restart, and on another replica of this server,
// the same rules have the same version.
func (s *server) publish(ctx context.Context, domains []*configv3.RateLimitConfig) (version string, err error) {
	sum := sha256.New()
	resources := make([]types.Resource, len(domains))
	for i, d := range domains {
		data, err := cache.MarshalResource(d)
		if err != nil {
			return "", err
		}
		one := sha256.Sum256(data)
		sum.Write(one[:])
		resources[i] = d
	}
	version = hex.EncodeToString(sum.Sum(nil)[:8])
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: resources})
	if err != nil {
		return "", err
	}
	return version, s.cache.SetSnapshot(ctx, everybody{}.ID(nil), snapshot)
}

// journal logs which node has which version.
type journal struct{}

// OnStreamOpen is called with each new stream.
func (journal) OnStreamOpen(_ context.Context, id int64, _ string) error {
	log.Printf("stream %d: open", id)
	return nil
}

// OnStreamClosed is called when it has ended.
func (journal) OnStreamClosed(id int64, node *corev3.Node) {
	log.Printf("stream %d: node %q is gone", id, node.GetId())
}

// OnStreamRequest is called with what a service says.
func (journal) OnStreamRequest(id int64, r *discovery.DiscoveryRequest) error {
	switch {
	case r.GetErrorDetail() != nil:
		log.Printf("stream %d: node %q refuses: %s", id, r.GetNode().GetId(), r.GetErrorDetail().GetMessage())
	case r.GetResponseNonce() == "":
		log.Printf("stream %d: node %q asks", id, r.GetNode().GetId())
	default:
		log.Printf("stream %d: node %q has version %q", id, r.GetNode().GetId(), r.GetVersionInfo())
	}
	return nil
}

// OnStreamResponse is called with what a service is sent.
func (journal) OnStreamResponse(context.Context, int64, *discovery.DiscoveryRequest, *discovery.DiscoveryResponse) {
}
