package chaos

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"ratelimit/src/testbed/harness"
)

const repository = "../.."

// Flags of make chaos, CHAOS="--full --write".
var (
	full  = flag.Bool("full", false, "have every fault on every store; takes some minutes")
	write = flag.Bool("write", false, "with --full: write docs/reliability.md anew")
)

var buildDir string // set by TestMain before any test runs

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if buildDir, err = os.MkdirTemp("", "ratelimit-chaos-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(buildDir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// binary is the program, built once, as it is shipped.
var binary = sync.OnceValues(func() (string, error) { return harness.BuildService(buildDir) })
