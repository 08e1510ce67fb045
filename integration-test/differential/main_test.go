package differential

import (
	"flag"
	"testing"

	"ratelimit/testbed/harness"
)

var (
	full           = flag.Bool("full", false, "run upstream beside the service; see make differential")
	configurations = flag.Int("configurations", 1000, "how `many` sets of rules are played")
	seed           = flag.Uint64("seed", 1, "the `seed` of all random choices")
	environmentNo  = flag.Int("environment", -1, "play only the environment with this `number`; -1: all")
)

func TestMain(m *testing.M) {
	harness.RunTests(m, func() error {
		if *full {
			return harness.MissingProgramsFail()
		}
		return nil
	})
}
