package conformance

import (
	"fmt"
	"os"
	"testing"
)

// programs are what the test binary runs as a child of a test. The first argument is the name; they get the others.
var programs = map[string]func(args []string) error{
	"interop-client":     runInteropClient,
	"conformance-server": runConformanceServer,
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && programs[os.Args[1]] != nil {
		if err := programs[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}
