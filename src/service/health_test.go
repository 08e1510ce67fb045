package service

import (
	"strings"
	"syscall"
	"testing"
)

// Metrics for alerts: readiness, and refused rules.
func TestHealthSamples(t *testing.T) {
	s := launch(t, "domain: [\n", "DISABLE_STATS=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0",
		"SHUTDOWN_DRAIN=1h")
	shows := func(ready, refused string) func() bool {
		return func() bool {
			_, body := s.get("prometheus", "/metrics")
			return strings.Contains(body, "\nratelimit_ready "+ready+"\n") &&
				strings.Contains(body, "\nratelimit_config_refused "+refused+"\n")
		}
	}
	s.until("first rules refused", shows("0", "1"))
	s.write("rules.yaml", oneRule)
	s.until("good rules", shows("1", "0"))
	s.write("rules.yaml", "domain: [\n")
	s.until("later ones refused, the old in force", shows("1", "1"))
	s.write("rules.yaml", oneRule)
	s.until("the same as before", shows("1", "0"))
	s.signals <- syscall.SIGTERM
	s.until("draining", shows("0", "0"))
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		t.Error(err)
	}
}
