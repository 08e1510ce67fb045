package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
)

// buildDir is for what tests build. RunTests sets it before the tests, and removes it after them.
var buildDir string

// BuildDir returns a directory that RunTests removes after the tests.
func BuildDir() string { return buildDir }

// BuiltService returns the path of the service's program, see BuildService. It is built once. The package's TestMain
// must call RunTests.
var BuiltService = sync.OnceValues(func() (string, error) { return BuildService(buildDir) })

// BuiltLoad returns the path of the generator of load, see BuildLoad. It is built once. The package's TestMain must
// call RunTests.
var BuiltLoad = sync.OnceValues(func() (string, error) { return BuildLoad(buildDir) })

// RunAtOnce lets n tests of a package run at a time, which mostly wait for servers, unless the command line has
// -parallel. TestMain calls it.
func RunAtOnce(n int) {
	flag.Parse()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == "test.parallel" })
	if !isSet {
		_ = flag.Set("test.parallel", strconv.Itoa(n))
	}
}

// RunInBackground calls run with a context that ends with the test. The test fails if run returns an error.
func RunInBackground(t testing.TB, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// RunTests is the TestMain of a package that starts the service. It reads the flags, calls prepare unless that is nil,
// runs the tests, and ends the process.
func RunTests(m *testing.M, prepare func() error) {
	flag.Parse()
	code, err := runTests(m, prepare)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M, prepare func() error) (code int, err error) {
	if buildDir, err = os.MkdirTemp("", "ratelimit-tests-"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(buildDir)) }()
	if prepare != nil {
		if err := prepare(); err != nil {
			return 0, err
		}
	}
	return m.Run(), nil
}

// MissingProgramsFail sets CI=true: a test whose program is missing then fails instead of being skipped.
func MissingProgramsFail() error { return os.Setenv("CI", "true") }
