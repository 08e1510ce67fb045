// Command testreport runs test commands one after the other and ends with one line of
// totals. Each argument is a shell command that runs `go test -json`:
//
//	testreport 'go test -json ./src/...' 'go test -json ./integration-test'
//
// It prints a line for each package, the output of tests that failed, and why tests
// were skipped. A failed command does not stop those behind it. The exit code is 0 if
// all commands succeeded, else 1.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: testreport 'go test -json ./...' ...")
		os.Exit(2)
	}
	start := time.Now()
	var r report
	ok := true
	for _, line := range os.Args[1:] {
		before := r.failed
		if err := r.run(line); err != nil {
			ok = false
			if r.failed == before {
				r.failed++ // it could not run its tests
			}
			fmt.Printf("%s: %v\n", line, err)
		}
	}
	r.print(time.Since(start))
	if !ok || r.failed > 0 {
		os.Exit(1)
	}
}

// event is a line of `go test -json`.
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
}

// report counts the tests of all commands. Subtests are counted on their own.
type report struct {
	passed, failed, skipped int
	subtests                int
	reasons                 []string             // of skipped tests, "test: reason"
	output                  map[[2]string]string // of tests and packages under way
	broken                  map[string]bool      // packages of which a test failed
}

// run runs one command and adds its tests to r. A line that is not JSON is printed as
// it is: the compiler writes such lines.
func (r *report) run(line string) error {
	cmd := exec.Command("bash", "-c", line)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.output, r.broken = make(map[[2]string]string), make(map[string]bool)
	lines := bufio.NewReader(out)
	for {
		text, err := lines.ReadString('\n')
		if text != "" {
			r.line(text)
		}
		if err != nil {
			break
		}
	}
	return cmd.Wait()
}

func (r *report) line(text string) {
	var e event
	if json.Unmarshal([]byte(text), &e) != nil {
		fmt.Print(text)
		return
	}
	key := [2]string{e.Package, e.Test}
	switch e.Action {
	case "output", "build-output":
		if !strings.HasPrefix(e.Output, "=== ") {
			r.output[key] += e.Output
		}
		return
	case "pass", "fail", "skip":
	case "build-fail":
		fmt.Print(r.output[key])
		return
	default:
		return
	}
	if e.Test == "" {
		r.endPackage(e, r.output[key])
	} else {
		r.endTest(e, r.output[key])
	}
	delete(r.output, key)
}

// endTest counts a test, and prints the output of one that failed.
func (r *report) endTest(e event, output string) {
	if strings.Contains(e.Test, "/") {
		r.subtests++
	} else {
		switch e.Action {
		case "pass":
			r.passed++
		case "fail":
			r.failed++
		}
	}
	switch e.Action {
	case "fail":
		r.broken[e.Package] = true
		fmt.Print(output)
	case "skip":
		r.skipped++
		r.reasons = append(r.reasons, e.Test+": "+reason(output))
	}
}

// endPackage prints the line of a package. A package that fails without a failed test,
// because it panicked or does not compile, counts as one.
func (r *report) endPackage(e event, output string) {
	switch {
	case e.Action == "fail":
		fmt.Print(output)
		fmt.Printf("FAIL %7.1fs  %s\n", e.Elapsed, e.Package)
		if !r.broken[e.Package] {
			r.failed++
		}
	case e.Action == "pass":
		cached := ""
		if strings.Contains(output, "(cached)") {
			cached = " (cached)"
		}
		fmt.Printf("ok   %7.1fs  %s%s\n", e.Elapsed, e.Package, cached)
	}
}

// reason is what a skipped test said, without the place.
func reason(output string) string {
	for line := range strings.SplitSeq(output, "\n") {
		if _, said, ok := strings.Cut(line, ".go:"); ok {
			_, said, _ = strings.Cut(said, ": ")
			return said
		}
	}
	return "no reason given"
}

func (r *report) print(took time.Duration) {
	if len(r.reasons) > 0 {
		fmt.Println("\nSkipped:")
		slices.Sort(r.reasons)
		for _, reason := range slices.Compact(r.reasons) {
			fmt.Println("  " + reason)
		}
	}
	fmt.Printf("\n%d subtests ran in %v.\n", r.subtests, took.Round(time.Second))
	fmt.Printf("tests: %d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}
