package service

import (
	"context"
	"runtime"
	"time"

	"ratelimit/src/files"
	"ratelimit/src/files/certs"
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

// showProcess shows the figures of the process and the log.
func (f *foundation) showProcess() {
	f.counters.ShowFigures("runtime", "", readRuntime)
	f.counters.ShowFigures("log", "", f.Output.errQueue.Stats)
	f.counters.ShowFigures("health", "", f.health.figures)
	f.counters.ShowFigures("config in force", "", f.health.rulesInForce)
}

// showClientCert shows when the client certificate for server expires, unless file is empty. Each scrape
// reads the file, as each new connection does.
func (f *foundation) showClientCert(server, file string) {
	if file == "" {
		return
	}
	reads := &files.Reads{Timeout: time.Second} // A scrape waits at most 1 s for a file.
	f.counters.ShowFigures("client certificate", server, func() certs.Stats {
		expiry, err := files.Read(context.Background(), reads, func() (time.Time, error) { return certs.NotAfter(file) })
		if err != nil {
			expiry = time.Unix(0, 0) // A certificate that cannot be read is shown as one that expired in 1970.
		}
		return certs.Stats{NotAfter: expiry}
	})
}
