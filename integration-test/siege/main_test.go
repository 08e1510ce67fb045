package siege

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"ratelimit/src/testbed/harness"
)

const repository = "../.."

// Flags of make siege, SIEGE="--write".
var (
	full  = flag.Bool("full", false, "run every attack in full size; takes several minutes")
	write = flag.Bool("write", false, "with --full: write docs/attacks.md anew")
)

var buildDir string // set by TestMain before any test runs

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
	// Quiet attacks mostly wait, however many cores there are.
	if err := flag.Set("test.parallel", "4"); err != nil {
		return 0, err
	}
	if buildDir, err = os.MkdirTemp("", "ratelimit-siege-"); err != nil {
		return 0, err
	}
	code = m.Run()
	return code, os.RemoveAll(buildDir)
}

// binary is the program, built once, as it is shipped.
var binary = sync.OnceValues(func() (string, error) { return harness.BuildService(buildDir) })
