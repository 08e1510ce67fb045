package differential

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"ratelimit/src/testbed/harness"
)

var (
	full           = flag.Bool("full", false, "run upstream beside the service; see make differential")
	configurations = flag.Int("configurations", 1000, "how `many` sets of rules are played")
	seed           = flag.Uint64("seed", 1, "the `seed` of all random choices")
	environmentNo  = flag.Int("environment", -1, "play only the environment with this `number`; -1: all")
)

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
	if buildDir, err = os.MkdirTemp("", "ratelimit-differential-"); err != nil {
		return 0, err
	}
	code = m.Run()
	return code, os.RemoveAll(buildDir)
}

// serviceBinary builds the service once. RATELIMIT_BIN names another binary.
var serviceBinary = sync.OnceValues(func() (string, error) { return harness.BuildService(buildDir) })
