package service

import (
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memcached"
	"ratelimit/src/rules/compile"
)

// StoreLimits returns what the store of a BACKEND_TYPE cannot count.
func StoreLimits(backend string) compile.StoreSupport {
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

func (s *store) buildMemcached() (backend.Backend, error) {
	from := s.Settings.Memcache
	p := &pool{
		name: "memcache", productName: "Memcached", labelInMessages: "Memcached", timeoutSetting: "MEMCACHE_TIMEOUT",
		alwaysPing:     from.HealthCheck,
		firstPingPause: time.Second, maxPingPause: 5 * time.Second,
	}
	mc := memcached.Config{
		Config:          s.poolConfig(p, from.Conns, from.Timeout),
		Servers:         from.Servers,
		OnServersChange: func(c memcached.ServersChange) { logServerChange(s.log.Logger, c) },
		OnLookupFailure: func(err error) { s.log.Warn(err) },
	}
	mc.StartSpan = s.spans.StoreCall("Memcached Fetch Execution", "memcached", "keysToGet length")
	if from.SRV != "" {
		mc.SRV = &memcached.SRV{
			Service: from.SRVParts.Service, Proto: from.SRVParts.Proto, Name: from.SRVParts.Name,
			RefreshPause: from.SRVRefresh,
		}
	}
	if from.Hash == "rendezvous" {
		mc.Hash = memcached.Rendezvous
	}
	var err error
	if from.TLS {
		s.showClientCert("memcache", from.TLSFiles.ClientCert)
		if mc.TLS, err = storeTLS("MEMCACHE_TLS_", from.TLSFiles); err != nil {
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
	s.counters.ShowFigures("memcache", "", &out.Counts)
	return out, nil
}

// logServerChange logs that the servers changed: counters that moved start from 0.
func logServerChange(log *logrus.Logger, c memcached.ServersChange) {
	log.Warnf("MEMCACHE_SRV: the servers were %s and are %s now: %.0f %% of all keys have another server, where they "+
		"are counted from 0",
		strings.Join(c.Before, ", "), strings.Join(c.After, ", "), 100*c.MovedKeyShare)
}
