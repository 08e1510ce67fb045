package redis

import (
	"context"
	"errors"
	"time"

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
	// Cluster is host:port of some nodes of a cluster; they know the others.
	Cluster []string
	// Credentials are asked for each connection, so that they may change. Nil: none.
	// Without a user and a password no AUTH is sent.
	Credentials func() (user, password string, err error)
	// DB is the number of the database.
	DB string
	// PipelineLimit is the number of hits in a batch at most. 0: no limit.
	PipelineLimit int
}

// Sentinel names the sentinels to ask, and the primary to ask them for.
type Sentinel struct {
	// Primary is the name of the primary in the configuration of the sentinels.
	Primary string
	// Addrs are host:port of some sentinels; they know the others.
	Addrs []string
	// Credentials are for the sentinels. Nil: none.
	Credentials func() (user, password string, err error)
}

// Store is a backend.Backend. It answers only while Run runs.
type Store struct {
	*remote.Store
	cfg Config
}

// New returns a store that is not connected yet.
func New(cfg Config) (*Store, error) {
	switch {
	case cfg.Sentinel != nil && (cfg.Sentinel.Primary == "" || len(cfg.Sentinel.Addrs) == 0):
		return nil, errors.New("redis: a primary without a name, or no sentinels")
	case cfg.Addr == "" && cfg.Sentinel == nil && len(cfg.Cluster) == 0:
		return nil, errors.New("redis: no address")
	}
	if cfg.Network == "" {
		cfg.Network = "tcp"
	}
	s := &Store{cfg: cfg}
	s.Store = remote.New("redis", cfg.Config, &protocol{
		opener: opener{cfg.Network, cfg.Credentials, cfg.DB, cfg.Sentinel != nil},
		cfg:    &s.cfg,
	}, nil, causes...)
	return s, nil
}

// Run serves Take until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	s.Store.Run(ctx, func(ctx context.Context) { s.watch(ctx, s.finder()) })
	return nil
}

// questionTimeout is the least time that a question about the layout may take, so that
// a timeout of calls that is too short for the way is found out at the primary, and
// reported as such.
const questionTimeout = 250 * time.Millisecond

// finder returns the finder for the configuration: single, sentinels or cluster.
func (s *Store) finder() finder {
	a := s.Access.Occasional(questionTimeout)
	o := opener{s.cfg.Network, s.cfg.Credentials, s.cfg.DB, false}
	switch {
	case s.cfg.Sentinel != nil:
		o.credentials, o.db = s.cfg.Sentinel.Credentials, ""
		a.Open = o.Open
		return &sentinels{panel: newPanel(a, s.cfg.Sentinel.Addrs), primary: s.cfg.Sentinel.Primary}
	case len(s.cfg.Cluster) > 0:
		a.Open = o.Open
		return &cluster{newPanel(a, s.cfg.Cluster)}
	}
	return single(s.cfg.Addr)
}

// find returns the servers that there are now.
func (s *Store) find(ctx context.Context) (remote.Layout, error) {
	f := s.finder()
	defer f.close()
	return f.find(ctx, false)
}

// Ping asks Redis whether it is there, over a connection of its own: the server, the
// primary, or the primaries of a cluster, one of which is enough. They are those that
// Run found; before it did, the configured servers are asked for them. The error is a
// *remote.SlowError if Redis answers, but later than the Timeout.
func (s *Store) Ping(ctx context.Context) error {
	l := s.Table().Layout
	if len(l.Addrs) == 0 {
		var err error
		if l, err = s.find(ctx); err != nil {
			return err
		}
	}
	return s.Store.Ping(ctx, l.Addrs)
}

// finder finds the servers and their slots. It is used by one goroutine at a time.
type finder interface {
	// find asks a server. With another it prefers a server other than the one that answered last.
	find(ctx context.Context, another bool) (remote.Layout, error)
	close()
}

// single is the address of the only server.
type single string

func (s single) find(context.Context, bool) (remote.Layout, error) {
	return remote.Layout{Addrs: []string{string(s)}}, nil
}

func (single) close() {}

// The layout is asked for every askEvery, and when something went wrong, but not more
// often than once in askLeast: that is how long a failover is not noticed at most,
// besides the time Redis takes for it.
const (
	askEvery = time.Second
	askLeast = 100 * time.Millisecond
)

// watch updates the table of servers with what f finds, until ctx ends.
func (s *Store) watch(ctx context.Context, f finder) {
	defer f.close()
	var last remote.Layout
	trouble := false
	for {
		least := time.After(askLeast)
		found, err := f.find(ctx, trouble)
		t := s.Table()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && found.Equal(&last) && len(t.Nodes) == len(found.Addrs): // as it was
		case err == nil:
			s.Use(ctx, found)
			last = found
		case t.Nodes == nil:
			s.Fail(err)
		default: // what was known may still be right
		}
		most := time.After(askEvery)
		select {
		case <-least:
		case <-ctx.Done():
			return
		}
		select {
		case <-s.Kicks:
			trouble = true
		case <-most:
			trouble = false
		case <-ctx.Done():
			return
		}
	}
}
