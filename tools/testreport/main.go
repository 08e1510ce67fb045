// Command testreport runs test commands, two at a time because tests often wait, and ends with one line of
// totals. Each argument is a shell command that runs `go test -json`, with two variables:
//
//	testreport 'go test -json $RUN ${PACKAGES:-./src/...}' 'go test -json $RUN ${PACKAGES:-./integration-test}'
//
// Both variables are empty at first. A test that fails runs once more, alone, after all
// commands: its command then runs with RUN="-count=1 -run ^TestName$" and PACKAGES set to
// its package. A package that failed outside of its tests, or did not reach its end, runs
// once more as a whole. What passes then is passed, and named in a line "flaky: NAME".
// More than maxRetries failures are no accident, so nothing runs again.
//
// It prints a line for each package, the output of tests that failed, and why tests
// were skipped. A failed command does not stop those behind it. The exit code is 0 if
// all commands succeeded, or did so in the end, else 1.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	maxRetries     = 10
	commandsAtOnce = 2
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: testreport 'go test -json $RUN ${PACKAGES:-./...}' ...")
		os.Exit(2)
	}
	start := time.Now()
	r := report{out: os.Stdout}
	r.runAll(os.Args[1:])
	r.retry()
	r.print(time.Since(start))
	if r.failed > 0 {
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
	mu                      sync.Mutex // guards the fields below
	out                     io.Writer
	passed, failed, skipped int
	subtests                int
	reasons                 []string  // of skipped tests, "test: reason"
	failures                []failure // each counts once in failed
	flaky                   []failure // failures that passed when they ran again
}

// failure is something that failed and can run again: a test, a package or a command.
type failure struct {
	command string
	pkg     string // "": the command failed without a test
	test    string // "": the package failed outside of its tests, or did not reach its end
}

func (f failure) String() string {
	switch {
	case f.pkg == "":
		return f.command
	case f.test == "":
		return f.pkg
	}
	return f.pkg + "." + f.test
}

func (r *report) runAll(commands []string) {
	var ended sync.WaitGroup
	mayRun := make(chan struct{}, commandsAtOnce)
	for _, command := range commands {
		mayRun <- struct{}{}
		ended.Go(func() {
			r.run(command)
			<-mayRun
		})
	}
	ended.Wait()
}

// run runs a command and adds its tests to r. It returns whether the command succeeded.
func (r *report) run(command string, variables ...string) bool {
	cmd := exec.Command("bash", "-c", command)
	cmd.Env = append(os.Environ(), append([]string{"RUN=", "PACKAGES="}, variables...)...)
	cmd.Stderr = os.Stderr
	c := reader{report: r, command: command, output: make(map[[2]string]string), failed: make(map[string][]string)}
	err := c.read(cmd)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		fmt.Fprintf(r.out, "%s: %v\n", command, err)
		if len(c.failed) == 0 {
			r.fail(failure{command: command})
		}
	}
	return err == nil
}

func (r *report) fail(f failure) {
	r.failed++
	r.failures = append(r.failures, f)
}

// retry runs each failure once more, alone.
func (r *report) retry() {
	failures := r.failures
	if len(failures) > maxRetries {
		fmt.Fprintf(r.out, "%d failures: none of them runs again\n", len(failures))
		return
	}
	for _, f := range failures {
		if f.pkg == "" {
			continue
		}
		run := "-count=1"
		if f.test != "" {
			run += " -run ^" + f.test + "$"
		}
		fmt.Fprintf(r.out, "once more, alone: %v\n", f)
		again := report{out: r.out}
		if again.run(f.command, "RUN="+run, "PACKAGES="+f.pkg) && again.passed > 0 {
			r.failed--
			r.passed++
			r.flaky = append(r.flaky, f)
		}
	}
}

// reader reads the events of one command.
type reader struct {
	*report
	command string
	output  map[[2]string]string // of tests and packages under way
	failed  map[string][]string  // by package, its failed tests
}

// read runs cmd and reads what it writes. A line that is not JSON is printed as it is:
// the compiler writes such lines.
func (c *reader) read(cmd *exec.Cmd) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	for {
		text, err := lines.ReadString('\n')
		if text != "" {
			c.line(text)
		}
		if err != nil {
			break
		}
	}
	return cmd.Wait()
}

func (c *reader) line(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var e event
	if json.Unmarshal([]byte(text), &e) != nil {
		fmt.Fprint(c.out, text)
		return
	}
	key := [2]string{e.Package, e.Test}
	switch e.Action {
	case "output", "build-output":
		if !strings.HasPrefix(e.Output, "=== ") {
			c.output[key] += e.Output
		}
		return
	case "pass", "fail", "skip":
	case "build-fail":
		fmt.Fprint(c.out, c.output[key])
		return
	default:
		return
	}
	if e.Test == "" {
		c.endPackage(e, c.output[key])
	} else {
		c.endTest(e, c.output[key])
	}
	delete(c.output, key)
}

// endTest counts a test, and prints the output of one that failed.
func (c *reader) endTest(e event, output string) {
	subtest := strings.Contains(e.Test, "/")
	if subtest {
		c.subtests++
	}
	switch e.Action {
	case "pass":
		if !subtest {
			c.passed++
		}
	case "fail":
		if !subtest {
			c.failed[e.Package] = append(c.failed[e.Package], e.Test)
		}
		fmt.Fprint(c.out, output)
	case "skip":
		c.skipped++
		c.reasons = append(c.reasons, e.Test+": "+reason(output))
	}
}

// endPackage prints the line of a package, and notes what failed in it.
func (c *reader) endPackage(e event, output string) {
	switch {
	case e.Action == "fail":
		for _, key := range slices.SortedFunc(maps.Keys(c.output), compareKeys) { // Tests without an end, as after a panic.
			if key[0] == e.Package && key[1] != "" {
				fmt.Fprint(c.out, c.output[key])
				delete(c.output, key)
			}
		}
		fmt.Fprint(c.out, output)
		fmt.Fprintf(c.out, "FAIL %7.1fs  %s\n", e.Elapsed, e.Package)
		tests := c.failed[e.Package]
		if len(tests) == 0 || !complete(output) {
			tests = []string{""} // all of them run again
		}
		c.failed[e.Package] = tests
		for _, test := range tests {
			c.fail(failure{c.command, e.Package, test})
		}
	case e.Action == "pass":
		cached := ""
		if strings.Contains(output, "(cached)") {
			cached = " (cached)"
		}
		fmt.Fprintf(c.out, "ok   %7.1fs  %s%s\n", e.Elapsed, e.Package, cached)
	}
}

func compareKeys(a, b [2]string) int { return slices.Compare(a[:], b[:]) }

// complete reports whether the tests of a package that failed ran to the last one: then
// package testing writes the line FAIL, which it does not after a panic.
func complete(output string) bool {
	return slices.Contains(strings.Split(output, "\n"), "FAIL")
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
		fmt.Fprintln(r.out, "\nSkipped:")
		slices.Sort(r.reasons)
		for _, reason := range slices.Compact(r.reasons) {
			fmt.Fprintln(r.out, "  "+reason)
		}
	}
	fmt.Fprintln(r.out)
	for _, f := range r.flaky {
		fmt.Fprintf(r.out, "flaky: %v\n", f)
	}
	fmt.Fprintf(r.out, "%d subtests ran in %v.\n", r.subtests, took.Round(time.Second))
	fmt.Fprintf(r.out, "tests: %d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}
