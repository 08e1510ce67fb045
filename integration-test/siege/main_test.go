package siege

import (
	"flag"
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
	harness.RunTests(m, func() error { return flag.Set("test.parallel", "4") })
}
