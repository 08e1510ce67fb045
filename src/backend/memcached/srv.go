package memcached

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SRV is a DNS record of type SRV, _service._proto.name, which lists the servers.
type SRV struct {
	Service, Proto, Name string
	// Refresh is the time between two lookups. 0: the record is looked up until it is found.
	Refresh time.Duration
}

// The pause between two lookups while there are no servers yet, and the time that
// one may take.
const (
	lookupLeast   = 100 * time.Millisecond
	lookupMost    = 5 * time.Second
	lookupTimeout = 5 * time.Second
)

// watch finds the servers until ctx ends, or until they are known and are not to
// be looked for again. While they cannot be found the old ones stay.
func (s *Store) watch(ctx context.Context) {
	pause := lookupLeast
	for ctx.Err() == nil {
		addrs, err := s.lookup(ctx)
		before := s.Table()
		switch {
		case err == nil:
			s.useFound(ctx, addrs)
			if pause = s.cfg.SRV.Refresh; pause <= 0 {
				return
			}
		case ctx.Err() == nil:
			s.Counts.FailedLookups.Add(1)
			if s.cfg.OnLookupFailure != nil {
				s.cfg.OnLookupFailure(err)
			}
			if before.Err != nil {
				s.Fail(fmt.Errorf("%w: %w", errNoServers, err))
				pause = min(2*pause, lookupMost)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// useFound makes addrs the servers, and reports a change of them.
func (s *Store) useFound(ctx context.Context, addrs []string) {
	before, found := s.Table(), layout(s.cfg.Hash, addrs)
	s.Use(ctx, found)
	if before.Err != nil || slices.Equal(before.Addrs, addrs) {
		return
	}
	s.Counts.Changes.Add(1)
	if s.cfg.OnChange != nil {
		s.cfg.OnChange(change(&before.Layout, &found))
	}
}

// lookup finds the servers, host:port in the order of envoyproxy/ratelimit.
func (s *Store) lookup(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	srv := s.cfg.SRV
	_, records, err := s.cfg.Resolver.LookupSRV(ctx, srv.Service, srv.Proto, srv.Name)
	if len(records) == 0 && err == nil {
		err = errors.New("there are no records")
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("memcached: SRV of %s: %w", srv.Name, err)
	}
	slices.SortFunc(records, func(a, b *net.SRV) int { return strings.Compare(target(a), target(b)) })
	var addrs []string
	for _, r := range records {
		addrs = append(addrs, net.JoinHostPort(strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port))))
	}
	return addrs, nil
}

// target is by what envoyproxy/ratelimit orders records: with the dot that names
// end with.
func target(r *net.SRV) string { return r.Target + ":" + strconv.Itoa(int(r.Port)) }
