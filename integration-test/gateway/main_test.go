package gateway

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"ratelimit/src/testbed/harness"
)

var full = flag.Bool("full", false, "run Envoy Gateway, which is built if there is none; see make gateway-check")

var buildDir string // TestMain sets it before any test runs

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if *full {
		// Who asks for everything must not get a skipped test for a missing program.
		if err := os.Setenv("CI", "true"); err != nil {
			return 0, err
		}
	}
	if buildDir, err = os.MkdirTemp("", "ratelimit-gateway-"); err != nil {
		return 0, err
	}
	code = m.Run()
	return code, os.RemoveAll(buildDir)
}

// onlyFull skips a test without -full.
func onlyFull(t *testing.T) {
	t.Helper()
	if !*full {
		t.Skip("this needs Envoy Gateway: make gateway-check")
	}
}

// serviceBinary builds the service once. RATELIMIT_BIN names another binary.
var serviceBinary = sync.OnceValues(func() (string, error) { return harness.BuildService(buildDir) })
