//go:build linux

package siege

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"ratelimit/testbed/harness"
)

const repository = "../.."

// Flags of make siege, SIEGE="--write".
var (
	full  = flag.Bool("full", false, "run every attack in full size; takes several minutes")
	write = flag.Bool("write", false, "with --full: write docs/attacks.md anew")
)

// TestMain lets quiet attacks run beside each other: they mostly wait, however many cores there are.
func TestMain(m *testing.M) {
	for variable, be := range map[string]func(order string) error{
		neighbourVariable: beNeighbour, resetsVariable: takeBackCalls,
	} {
		if order := os.Getenv(variable); order != "" {
			if err := be(order); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	harness.RunTests(m, func() error { return flag.Set("test.parallel", "4") })
}
