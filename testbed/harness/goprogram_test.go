package harness

import "testing"

func TestProgramName(t *testing.T) {
	t.Parallel()
	for pkg, want := range map[string]string{
		"github.com/example/tool":           "tool",
		"github.com/example/tool/v2":        "tool",
		"github.com/example/tool/cmd/other": "other",
		"github.com/example/vet":            "vet",
	} {
		if got := programName(pkg); got != want {
			t.Errorf("%s: %s, want %s", pkg, got, want)
		}
	}
}
