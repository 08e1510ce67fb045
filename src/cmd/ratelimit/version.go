package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Stamped by the linker: -X main.version=v1.2.3 -X main.commit=abc123.
var (
	version = "dev"
	commit  = ""
)

func versionCommand(std stdio) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit and Go release (also --version)",
		Example: "  ratelimit version",
		Args:    noWords,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(std.out, versionText())
			return err
		},
	}
}

// versionText is what `ratelimit version` and --version print.
func versionText() string {
	return fmt.Sprintf("ratelimit %s (commit %s, %s, %s/%s)", version, revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// revision is the stamped commit, or the one Go noted while building.
func revision() string {
	if commit != "" {
		return commit
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}
