package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestReport counts the events of a recorded run: a test that passes, one that fails
// in its subtest, one that is skipped, a package that panics outside its tests.
func TestReport(t *testing.T) {
	events := `{"Action":"run","Package":"a","Test":"TestGood"}
{"Action":"output","Package":"a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"pass","Package":"a","Test":"TestGood"}
{"Action":"fail","Package":"a","Test":"TestBad/sub"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"    a_test.go:7: got 1, want 2\n"}
{"Action":"fail","Package":"a","Test":"TestBad"}
{"Action":"output","Package":"a","Test":"TestAway","Output":"    a_test.go:9: no Redis: put redis-server on PATH\n"}
{"Action":"skip","Package":"a","Test":"TestAway"}
{"Action":"fail","Package":"a"}
{"Action":"output","Package":"b","Output":"panic: b\n"}
{"Action":"fail","Package":"b"}
{"Action":"pass","Package":"c"}
`
	file := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(file, []byte(events), 0o600); err != nil {
		t.Fatal(err)
	}
	var r report
	if err := r.run("cat " + file); err != nil {
		t.Fatal(err)
	}
	if r.passed != 1 || r.failed != 2 || r.skipped != 1 || r.subtests != 1 {
		t.Errorf("%d passed, %d failed, %d skipped, %d subtests; want 1, 2, 1, 1", r.passed, r.failed, r.skipped, r.subtests)
	}
	if want := []string{"TestAway: no Redis: put redis-server on PATH"}; !slices.Equal(r.reasons, want) {
		t.Errorf("reasons %q, want %q", r.reasons, want)
	}
	if err := r.run("exit 3"); err == nil || !strings.Contains(err.Error(), "3") {
		t.Errorf("a command that exits with 3: %v", err)
	}
}
