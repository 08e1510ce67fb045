package editor

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/testfiles"
)

// serverVersion is that of yaml-language-server.
const serverVersion = "1.25.0"

var full = flag.Bool("full", false, "install and run yaml-language-server")

// languageServer installs yaml-language-server once, and returns the path of its program.
func languageServer(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "ratelimit-test", "yaml-language-server-"+serverVersion)
	program := filepath.Join(dir, "node_modules", "yaml-language-server", "bin", "yaml-language-server")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts",
		"yaml-language-server@"+serverVersion)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", install, err, out)
	}
	return program
}

func TestEditor(t *testing.T) {
	if !*full {
		t.Skip("make editor-check runs this")
	}
	example, err := filepath.Abs("../../examples/ratelimit/config/windows.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := testfiles.Read(t, example)
	modeline, _, _ := strings.Cut(string(text), "\n")
	s := startServer(t, "node", languageServer(t), "--stdio")

	t.Run("examples", func(t *testing.T) {
		files, err := filepath.Glob(filepath.Join(filepath.Dir(example), "*.yaml"))
		if err != nil || len(files) < 5 {
			t.Fatalf("%d examples: %v", len(files), err)
		}
		for _, file := range files {
			text := testfiles.Read(t, file)
			for _, d := range s.diagnostics(t, file, string(text)) {
				t.Errorf("%s:%d: %s", file, d.Range.Start.Line+1, d.Message)
			}
		}
	})
	t.Run("mistakes", func(t *testing.T) {
		// One mistake in line 4, 5, 6 and 7 each, counted from 0.
		rules := modeline + "\ndomain: d\ndescriptors:\n  - key: a\n    valu: b\n    rate_limit: {unit: mintue, " +
			"requests_per_unit: 5}\n  - rate_limit: {unit: day, requests_per_unit: -1}\n    key: 7\n"
		want := map[int]string{4: "valu", 5: "second", 6: "0"}
		for _, d := range s.diagnostics(t, filepath.Join(filepath.Dir(example), "mistakes.yaml"), rules) {
			if part, ok := want[d.Range.Start.Line]; ok && strings.Contains(d.Message, part) {
				if d.Source != "yaml-schema: Rules of a rate limit service" {
					t.Errorf("line %d: the source of %q is %q", d.Range.Start.Line, d.Message, d.Source)
				}
				delete(want, d.Range.Start.Line)
			} else {
				t.Logf("line %d: %s (%s)", d.Range.Start.Line, d.Message, d.Source)
			}
		}
		if len(want) > 0 {
			t.Errorf("mistakes that are not marked, by line: %v", want)
		}
	})
	t.Run("completion", func(t *testing.T) {
		for _, tt := range []struct {
			text string // ends where the cursor is.
			want string
		}{
			{"domain: d\ndescriptors:\n  - key: a\n    ra", "rate_limit"},
			{"domain: d\ndescriptors:\n  - key: a\n    rate_limit:\n      requests", "requests_per_unit"},
			{"domain: d\ndescriptors:\n  - key: a\n    rate_limit:\n      unit: mi", "minute"},
			{"domain: d\ndescriptors:\n  - key: a\n    rate_limit:\n      algorithm: s", "sliding_window"},
		} {
			got := s.completions(t, filepath.Join(filepath.Dir(example), "completion.yaml"), modeline+"\n"+tt.text)
			documented, ok := got[tt.want]
			if !ok {
				t.Errorf("after %q: %v, want %s", tt.text, got, tt.want)
			}
			if strings.Contains(tt.want, "_") && tt.want != "sliding_window" && !documented {
				t.Errorf("%s has no description", tt.want)
			}
		}
	})
}
