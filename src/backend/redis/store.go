package redis

import (
	"cmp"
	"context"
	"errors"
	"time"

	"ratelimit/src/backend/redis/credentials"
	"ratelimit/src/backend/remote"
)

// Config names the servers and how to reach them. It has either Addr, Sentinel or Cluster.
type Config struct {
	remote.Config
	// Addr is a server: host:port or the path of a socket.
	Addr string
	// Network is the network of Addr: "tcp" or "unix". Defaults to "tcp".
	Network string
	// Sentinel finds the server by asking sentinels.
	Sentinel *Sentinel
	// Cluster is host:port of some nodes of a cluster, which name the others.
	Cluster []string
	// Credentials gives what each connection authenticates with. Nil means no AUTH.
	Credentials credentials.Source
	// DB is the number of the database.
	DB string
	// PipelineLimit is the largest number of hits in a batch. 0 means no limit.
	PipelineLimit int
	// OnForeignValue is called when the key of a counter or of its holds has what another program wrote: a value of
	// another type, or a text that is no counter. algorithm names what the counter is for, and addr is the server. It
	// must return soon. Nil ignores it.
	OnForeignValue func(algorithm, addr string)
}

// Sentinel names the sentinels, and the primary that they watch.
type Sentinel struct {
	// Primary is the name of the primary in the configuration of the sentinels.
	Primary string
	// Addrs are host:port of some sentinels, which name the others.
	Addrs []string
	// Credentials are for the sentinels. Nil means no AUTH.
	Credentials credentials.Source
}

// Store is a backend.Backend. It answers only while Run runs.
type Store = remote.Store

// New returns a store that is not connected yet.
func New(cfg Config) (*Store, error) {
	switch {
	case cfg.Sentinel != nil && (cfg.Sentinel.Primary == "" || len(cfg.Sentinel.Addrs) == 0):
		return nil, errors.New("redis: a primary without a name, or no sentinels")
	case cfg.Addr == "" && cfg.Sentinel == nil && len(cfg.Cluster) == 0:
		return nil, errors.New("redis: no address")
	}
	cfg.Network = cmp.Or(cfg.Network, "tcp")
	return remote.New("redis", cfg.Config, &protocol{
		opener: opener{cfg.Network, cfg.Credentials, cfg.DB, cfg.Sentinel != nil},
		cfg:    &cfg,
	}, nil, causes...), nil
}

// minLayoutTimeout is the least Timeout of a command that asks for the layout. With a Timeout
// too short for the network, the primary is still found, and then reported as slow.
const minLayoutTimeout = 250 * time.Millisecond

// The layout is asked for once in each layoutPause, and minLayoutPause after a request for it
// when something failed. A failover is noticed that much later than Redis completes it.
const (
	layoutPause    = time.Second
	minLayoutPause = 100 * time.Millisecond
)

// FindServers uses the configured server, or those that sentinels or cluster nodes name.
// After a failed attempt the servers of the last one stay in use.
func (p *protocol) FindServers(ctx context.Context, s *remote.Store) {
	if c := p.cfg.Credentials; c != nil {
		s.Go(func() { c.Run(ctx) })
	}
	if p.cfg.Sentinel != nil && p.cfg.Sentinel.Credentials != nil {
		s.Go(func() { p.cfg.Sentinel.Credentials.Run(ctx) })
	}
	if p.cfg.Sentinel == nil && len(p.cfg.Cluster) == 0 {
		s.UseLayout(ctx, remote.Layout{Addrs: []string{p.cfg.Addr}})
		return
	}
	a := s.Access.WithMinTimeout(minLayoutTimeout)
	o := opener{p.cfg.Network, p.cfg.Credentials, p.cfg.DB, false}
	d := newTopologyServers(a, p.cfg.Cluster)
	find := d.clusterLayout
	if p.cfg.Sentinel != nil {
		o.credentials, o.database = p.cfg.Sentinel.Credentials, ""
		d = newTopologyServers(a, p.cfg.Sentinel.Addrs)
		find = (&sentinels{topologyServers: d, primaryName: p.cfg.Sentinel.Primary}).findLayout
	}
	a.Opener = &o
	defer d.close()
	requested := false
	for {
		soonest := time.After(minLayoutPause)
		found, err := find(ctx, requested)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			s.UseLayout(ctx, found)
		case s.Table().Nodes == nil:
			s.FailUntilLayout(err)
		}
		latest := time.After(layoutPause)
		select {
		case <-soonest:
		case <-ctx.Done():
			return
		}
		select {
		case <-s.ServerSearchRequests:
			requested = true
		case <-latest:
			requested = false
		case <-ctx.Done():
			return
		}
	}
}
