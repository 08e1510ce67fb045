package gateway

import (
	"flag"
	"testing"

	"ratelimit/testbed/harness"
)

var full = flag.Bool("full", false, "run Envoy Gateway, which is built if there is none; see make gateway-check")

func TestMain(m *testing.M) {
	harness.RunTests(m, func() error {
		if *full {
			return harness.MissingProgramsFail()
		}
		return nil
	})
}

// onlyFull skips a test without -full.
func onlyFull(t *testing.T) {
	t.Helper()
	if !*full {
		t.Skip("this needs Envoy Gateway: make gateway-check")
	}
}
