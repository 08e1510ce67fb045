package service

import (
	"net/http"
	"sync"
	"time"
)

// earlyRequestPatience is how long after the start requests to /json wait for the first rules at most. It is less than
// bodyTimeout.
const earlyRequestPatience = 5 * time.Second

// earlyRequests are requests to /json before the first rules. The HTTP port is open at once, because probes use it.
type earlyRequests struct {
	released chan struct{}
	release  func() // lets all requests through from now on. Later calls do nothing.
}

func newEarlyRequests() earlyRequests {
	released := make(chan struct{})
	return earlyRequests{released, sync.OnceFunc(func() { close(released) })}
}

// hold makes requests to h wait for release.
func (e earlyRequests) hold(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-e.released:
			h.ServeHTTP(w, r)
		case <-r.Context().Done(): // The caller has gone.
		}
	})
}

// admitCallers opens the ports that await rules and lets early requests through. Requests can be decided from now on.
func (s *servers) admitCallers() error {
	opened, err := s.ports.OpenForCallers()
	for _, p := range opened {
		s.log.logListening(p.Name, p.Addr())
	}
	s.early.release()
	return err
}

// closedPortsNote is the end of a message about missing rules. It says what they mean for callers.
func (f *foundation) closedPortsNote() string {
	if f.Settings.ForceStartWithoutConfig {
		return ""
	}
	return " and the ports of callers stay closed"
}
