package store

import (
	"strings"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memcached"
	"ratelimit/src/files/certs"
	"ratelimit/src/rules/compile"
)

// Limits returns what the store of a BACKEND_TYPE cannot count.
func Limits(backend string) compile.StoreSupport {
	if backend != "memcache" {
		return compile.StoreSupport{}
	}
	return compile.StoreSupport{
		StoreName:             "Memcached",
		Algorithms:            memcached.CountableKinds(),
		AlwaysCountsBlocked:   true,
		CannotChargeAllOrNone: true,
		WhyNoHolds:            "it has no script that changes several things at once",
		AlternativeStores:     []string{"memory", "redis"},
	}
}

func (s *Store) openMemcached() (backend.Backend, error) {
	from := s.cfg.Memcache
	p := &Pool{
		name: "memcache", productName: "Memcached", labelInMessages: "Memcached", timeoutSetting: "MEMCACHE_TIMEOUT",
		alwaysPing:     from.HealthCheck,
		firstPingPause: time.Second, maxPingPause: 5 * time.Second,
	}
	mc := memcached.Config{
		Config:          s.remoteConfig(p, from.Conns, from.Timeout),
		Servers:         from.Servers,
		OnServersChange: s.logServerChange,
		OnLookupFailure: func(err error) { s.cfg.Log.Warn(err) },
	}
	mc.StartSpan = s.cfg.Spans("Memcached Fetch Execution", "memcached", "keysToGet length")
	if from.SRV != "" {
		mc.SRV = &memcached.SRV{
			Service: from.SRVParts.Service, Proto: from.SRVParts.Proto, Name: from.SRVParts.Name,
			RefreshPause: from.SRVRefresh,
		}
	}
	if from.Hash == "rendezvous" {
		mc.Hash = memcached.Rendezvous
	}
	if from.TLS {
		if file := from.TLSFiles.ClientCert; file != "" {
			s.cfg.Figures.ShowFigures("client certificate", "memcache", certs.ClientStats(file))
		}
		mc.TLS = clientTLS("MEMCACHE_TLS_", from.TLSFiles).TLS
		if _, err := mc.TLS(); err != nil {
			return nil, err
		}
	}
	if len(from.Servers) > 0 && !strings.Contains(from.Servers[0], "/") {
		p.tlsCheck = storeTLSCheck{"tcp", from.Servers[0], from.TLS, "MEMCACHE_TLS"}
	}
	out, err := memcached.New(mc)
	if err != nil {
		return nil, err
	}
	s.addPool(p, out)
	s.cfg.Figures.ShowFigures("memcache", "", &out.Counts)
	return out, nil
}

// logServerChange logs that the servers changed: counters that moved start from 0.
func (s *Store) logServerChange(c memcached.ServersChange) {
	s.cfg.Log.Warnf("MEMCACHE_SRV: the servers were %s and are %s now: %.0f %% of all keys have another server, where they "+
		"are counted from 0",
		strings.Join(c.Before, ", "), strings.Join(c.After, ", "), 100*c.MovedKeyShare)
}
