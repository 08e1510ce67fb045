// Command load is `ratelimit bench` with a client that costs the generator a fraction of the CPU time of grpc-go's,
// which leaves the cores to a server on the same machine: --client lean knows a single method, and sends the calls of a
// connection together.
package main

import (
	"fmt"
	"os"

	"ratelimit/src/tools/bench"
)

func main() {
	var eager bool
	cmd := bench.Command(leanClient(&eager))
	cmd.Flags().BoolVar(&eager, "eager", false, "--client lean sends a call as soon as one is answered, each in its own write")
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if err := cmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}
