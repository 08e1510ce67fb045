package service

import (
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memcached"
	"ratelimit/src/rules"
)

// StoreLimits returns what the store of a BACKEND_TYPE cannot count.
func StoreLimits(backend string) rules.Store {
	if backend != "memcache" {
		return rules.Store{}
	}
	return rules.Store{
		Name:          "Memcached",
		Kinds:         memcached.Kinds(),
		CountsBlocked: true,
		NoGroups:      true,
		Others:        []string{"memory", "redis"},
	}
}

// memcache makes the store of Memcached.
func (s *Service) memcache() (backend.Backend, error) {
	from := s.Settings.Memcache
	p := &pool{
		name: "memcache", product: "Memcached", label: "Memcached", variable: "MEMCACHE_TIMEOUT", alwaysPing: from.HealthCheck,
		firstPause: time.Second, maxPause: 5 * time.Second,
	}
	mc := memcached.Config{
		Config:          s.poolConfig(p, from.Conns, from.Timeout),
		Servers:         from.Servers,
		OnChange:        func(c memcached.Change) { logChange(s.log.Logger, c) },
		OnLookupFailure: func(err error) { s.log.Warn(err) },
	}
	mc.Span = s.tracing.Memcached()
	if from.SRV != "" {
		mc.SRV = &memcached.SRV{Service: from.SRVParts.Service, Proto: from.SRVParts.Proto, Name: from.SRVParts.Name, Refresh: from.SRVRefresh}
	}
	if from.Hash == "rendezvous" {
		mc.Hash = memcached.Rendezvous
	}
	var err error
	if from.TLS {
		if mc.TLS, err = storeTLS("MEMCACHE_TLS_", from.TLSFiles); err != nil {
			return nil, err
		}
	}
	out, err := memcached.New(mc)
	if err != nil {
		return nil, err
	}
	s.addPool(p, out, figures("memcache", "", func() *memcached.Counts { return &out.Counts }))
	return out, nil
}

// logChange logs that the servers changed: counters that moved start from 0.
func logChange(log *logrus.Logger, c memcached.Change) {
	log.Warnf("MEMCACHE_SRV: the servers were %s and are %s now: %.0f %% of all keys have another server, where they are counted from 0",
		strings.Join(c.Before, ", "), strings.Join(c.After, ", "), 100*c.Moved)
}
