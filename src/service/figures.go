package service

import (
	"context"
	"runtime"
	"time"

	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/settings"
)

type runtimeFigures struct {
	runtime.MemStats
	Goroutines, CPUPercent int
}

func readRuntime() (p runtimeFigures) {
	runtime.ReadMemStats(&p.MemStats)
	p.Goroutines, p.CPUPercent = runtime.NumGoroutine(), int(p.GCCPUFraction*100)
	return p
}

// addFigures adds the figures of the process, the log, the ports and health.
func (s *Service) addFigures() {
	s.counters.ShowFigures("runtime", "", readRuntime)
	s.counters.ShowFigures("log", "", s.Output.errQueue.Stats)
	s.counters.ShowFigures("buffered", "", s.ports.budget)
	s.counters.ShowFigures("health", "", s.health.figures)
	s.counters.ShowFigures("config", "", &s.rules)
	s.counters.ShowFigures("config in force", "", s.health.rulesInForce)
	for _, p := range s.ports.all() {
		if l, ok := p.Listener.(*connlimit.Listener); ok {
			s.counters.ShowFigures("port", p.name, l.Stats)
		}
	}
	s.addClientCertFigures()
}

// addClientCertFigures adds when the client certificates of this process expire. Each scrape
// reads the files, as each new connection does.
func (s *Service) addClientCertFigures() {
	cfg := s.Settings
	redisTLS := cfg.BackendType == "redis" && (cfg.Redis.TLS || cfg.RedisSplit && cfg.RedisPerSecond.TLS)
	reads := &files.Reads{Timeout: time.Second} // A scrape waits at most 1 s for a file.
	for _, cert := range []struct {
		server, file string
		on           bool
	}{
		{"xds", cfg.XDS.ClientCert, cfg.ConfigType == settings.ConfigXDS && cfg.XDS.TLS},
		{"redis", cfg.RedisTLS.ClientCert, redisTLS},
		{"memcache", cfg.Memcache.TLSFiles.ClientCert, cfg.BackendType == "memcache" && cfg.Memcache.TLS},
	} {
		if !cert.on || cert.file == "" {
			continue
		}
		s.counters.ShowFigures("client certificate", cert.server, func() (st certs.Stats) {
			expiry, err := files.Read(context.Background(), reads, func() (time.Time, error) { return certs.NotAfter(cert.file) })
			if err != nil {
				expiry = time.Unix(0, 0) // A certificate that cannot be read is shown as one that expired in 1970.
			}
			st.NotAfter = expiry
			return st
		})
	}
}
