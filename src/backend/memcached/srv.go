package memcached

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"ratelimit/src/backend/remote"
)

// SRV is a DNS record of type SRV, _service._proto.name, which lists the servers.
type SRV struct {
	Service, Proto, Name string
	// RefreshPause is the time between two lookups. With 0, lookups end when the record is found.
	RefreshPause time.Duration
}

// While no lookup has found a server, the pause between two lookups doubles from minLookupPause to maxLookupPause.
const (
	minLookupPause = 100 * time.Millisecond
	maxLookupPause = 5 * time.Second
	lookupTimeout  = 5 * time.Second
)

// FindServers uses the configured servers, or those that SRV lists. After a failed lookup
// the servers of the last one stay in use.
func (p protocol) FindServers(ctx context.Context, s *remote.Store) {
	cfg := &p.store.cfg
	if cfg.SRV == nil {
		s.UseLayout(ctx, newLayout(cfg.Hash, cfg.Servers))
		return
	}
	pause := minLookupPause
	for ctx.Err() == nil {
		addrs, err := p.lookUpServers(ctx)
		switch {
		case err == nil:
			p.useFoundServers(ctx, addrs)
			if pause = cfg.SRV.RefreshPause; pause <= 0 {
				return
			}
		case ctx.Err() == nil:
			p.store.Counts.FailedLookups.Add(1)
			if cfg.OnLookupFailure != nil {
				cfg.OnLookupFailure(err)
			}
			if s.Table().Err != nil {
				s.FailUntilLayout(fmt.Errorf("%w: %w", errNoServers, err))
				pause = min(2*pause, maxLookupPause)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// useFoundServers makes addrs the servers. It counts and reports a change, but not the first servers.
func (p protocol) useFoundServers(ctx context.Context, addrs []string) {
	s := p.store
	before, found := s.Table(), newLayout(s.cfg.Hash, addrs)
	s.UseLayout(ctx, found)
	if before.Err != nil || slices.Equal(before.Addrs, addrs) {
		return
	}
	s.Counts.ServerChanges.Add(1)
	if s.cfg.OnServersChange != nil {
		s.cfg.OnServersChange(compareLayouts(&before.Layout, &found))
	}
}

// lookUpServers returns the servers that SRV lists as host:port, in the order of envoyproxy/ratelimit.
func (p protocol) lookUpServers(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	srv := p.store.cfg.SRV
	_, records, err := p.store.cfg.Resolver.LookupSRV(ctx, srv.Service, srv.Proto, srv.Name)
	if len(records) == 0 && err == nil {
		err = errors.New("there are no records")
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("memcached: SRV of %s: %w", srv.Name, err)
	}
	slices.SortFunc(records, func(a, b *net.SRV) int { return strings.Compare(srvSortText(a), srvSortText(b)) })
	var addrs []string
	for _, r := range records {
		addrs = append(addrs, net.JoinHostPort(strings.TrimSuffix(r.Target, "."), fmt.Sprint(r.Port)))
	}
	return addrs, nil
}

// srvSortText returns the text by which envoyproxy/ratelimit sorts SRV records. The host name keeps the dot at its end.
func srvSortText(r *net.SRV) string { return fmt.Sprintf("%s:%d", r.Target, r.Port) }
