package chaos

import (
	"flag"
	"testing"

	"ratelimit/testbed/harness"
)

const repository = "../.."

// Flags of make chaos, CHAOS="--full --write".
var (
	full  = flag.Bool("full", false, "have every fault on every store; takes some minutes")
	write = flag.Bool("write", false, "with --full: write docs/reliability.md anew")
)

func TestMain(m *testing.M) { harness.RunTests(m, nil) }
