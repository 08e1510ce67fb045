package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// events is a recorded run: a test that passes, one that fails in its subtest, one that is skipped, and a package that
// panics outside of its tests.
const events = `{"Action":"run","Package":"a","Test":"TestGood"}
{"Action":"output","Package":"a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"pass","Package":"a","Test":"TestGood"}
{"Action":"fail","Package":"a","Test":"TestBad/sub"}
{"Action":"output","Package":"a","Test":"TestBad","Output":"    a_test.go:7: got 1, want 2\n"}
{"Action":"fail","Package":"a","Test":"TestBad"}
{"Action":"output","Package":"a","Test":"TestAway","Output":"    a_test.go:9: no Redis: put redis-server on PATH\n"}
{"Action":"skip","Package":"a","Test":"TestAway"}
{"Action":"output","Package":"a","Output":"FAIL\n"}
{"Action":"fail","Package":"a"}
{"Action":"output","Package":"b","Test":"TestHangs","Output":"goroutine 7 of b\n"}
{"Action":"output","Package":"b","Output":"panic: b\n"}
{"Action":"fail","Package":"b"}
{"Action":"pass","Package":"c"}
`

func TestReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "events")
	if err := os.WriteFile(file, []byte(events), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	r := report{out: io.MultiWriter(&out, t.Output())}
	command := "cat " + file + "; exit 1"
	if r.run(command) {
		t.Error("a command that exits with 1 succeeded")
	}
	if r.passed != 1 || r.failed != 2 || r.skipped != 1 || r.subtests != 1 {
		t.Errorf("%d passed, %d failed, %d skipped, %d subtests; want 1, 2, 1, 1", r.passed, r.failed, r.skipped, r.subtests)
	}
	if want := "goroutine 7 of b\npanic: b\n"; !strings.Contains(out.String(), want) {
		t.Errorf("the output lacks %q", want)
	}
	if want := []failure{{command, "a", "TestBad"}, {command, "b", ""}}; !slices.Equal(r.failures, want) {
		t.Errorf("failures %q, want %q", r.failures, want)
	}
	if want := []string{"TestAway: no Redis: put redis-server on PATH"}; !slices.Equal(r.reasons, want) {
		t.Errorf("reasons %q, want %q", r.reasons, want)
	}
	if r.run("exit 3") || r.failed != 3 {
		t.Errorf("a command that exits with 3: %d failures, want 3", r.failed)
	}
}

// TestRetry runs a real module. Its tests fail while a file is absent, which one of them makes.
func TestRetry(t *testing.T) {
	const (
		once   = `if _, err := os.Stat("ran"); err != nil { os.WriteFile("ran", nil, 0o600); t.Fatal("the first time") }`
		always = `t.Fatal("each time")`
		panics = `if _, err := os.Stat("ran"); err != nil { os.WriteFile("ran", nil, 0o600); panic("the first time") }`
		passes = ``
	)
	for _, tt := range []struct {
		name           string
		first, second  string // bodies of TestFirst and TestSecond
		passed, failed int
		flaky          string
	}{
		{"one passes the second time", once, passes, 2, 0, "m.TestFirst"},
		{"one fails twice", always, passes, 1, 1, ""},
		{"one fails twice, the other passes the second time", always, once, 1, 1, "m.TestSecond"},
		{"after a panic the whole package runs again", panics, passes, 1, 0, "m"},
		{"a test that a panic kept from running fails", panics, always, 0, 1, ""},
		{"a package that does not compile", "this is no Go", passes, 0, 1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("go.mod", "module m\n")
			write("m_test.go", "package m\n\nimport (\"os\"; \"testing\")\n\nvar _ = os.Stat\n\n"+
				"func TestFirst(t *testing.T) {"+tt.first+"}\n\nfunc TestSecond(t *testing.T) {"+tt.second+"}\n")
			r := report{out: t.Output()}
			r.run("cd " + dir + " && GOFLAGS= go test -json $RUN ${PACKAGES:-./...}")
			r.retry()
			var flaky []string
			for _, f := range r.flaky {
				flaky = append(flaky, f.String())
			}
			if r.passed != tt.passed || r.failed != tt.failed || strings.Join(flaky, " ") != tt.flaky {
				t.Errorf("%d passed, %d failed, flaky %q; want %d, %d, %q", r.passed, r.failed, flaky, tt.passed, tt.failed,
					tt.flaky)
			}
		})
	}
}

// TestManyFailures: what many tests fail for is no accident, so none of them runs again.
func TestManyFailures(t *testing.T) {
	r := report{out: t.Output()}
	mark := filepath.Join(t.TempDir(), "again")
	for n := range maxRetries + 1 {
		r.fail(failure{"touch " + mark, "m", fmt.Sprint("Test", n)})
	}
	r.retry()
	if _, err := os.Stat(mark); err == nil || r.failed != maxRetries+1 {
		t.Errorf("%d failures, and the mark of a second run: %v", r.failed, err)
	}
}
