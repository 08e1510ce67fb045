package service

import (
	"context"
	"runtime"
	"time"

	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/frontend/connlimit"
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
}

// showClientCert shows when the client certificate for server expires, unless file is empty. Each scrape
// reads the file, as each new connection does.
func (s *Service) showClientCert(server, file string) {
	if file == "" {
		return
	}
	reads := &files.Reads{Timeout: time.Second} // A scrape waits at most 1 s for a file.
	s.counters.ShowFigures("client certificate", server, func() certs.Stats {
		expiry, err := files.Read(context.Background(), reads, func() (time.Time, error) { return certs.NotAfter(file) })
		if err != nil {
			expiry = time.Unix(0, 0) // A certificate that cannot be read is shown as one that expired in 1970.
		}
		return certs.Stats{NotAfter: expiry}
	})
}
