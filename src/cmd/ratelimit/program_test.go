package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"ratelimit/testbed/harness"
)

// buildDir has the built program. It is empty until the first test needs the program.
var buildDir string

// builtProgram returns the path of the program, which it builds once for all tests.
var builtProgram = sync.OnceValues(func() (path string, err error) {
	if buildDir, err = os.MkdirTemp("", "ratelimit-cmd-"); err != nil {
		return "", err
	}
	return harness.BuildService(buildDir)
})

// program returns a command that runs the built program with args as its os.Args: args[0] is the name that it is called
// by.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := builtProgram()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path)
	cmd.Args = args
	return cmd
}

// call runs a command in this process, and returns its exit status, output and error output. args[0] is the name of the
// program.
func call(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	return callWithInput(t, "", args...)
}

// callWithInput is call with a standard input.
func callWithInput(t *testing.T, in string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e strings.Builder
	root := commands(&o, &e)
	root.SetIn(strings.NewReader(in))
	code = run(t.Context(), root, args)
	return code, o.String(), e.String()
}

// finish runs cmd to its end. It returns the exit status, the output and the error output.
func finish(t *testing.T, cmd *exec.Cmd, in string) (code int, out, errOut string) {
	t.Helper()
	var o, e strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &o, &e
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// background is a program that runs beside the test.
type background struct {
	*exec.Cmd
	in          io.WriteCloser
	out, errOut sharedBuffer
	code        chan int // has the exit status after the end
}

// startProgram starts the program, see program. It is killed if it still runs at the end of the test.
func startProgram(t *testing.T, args ...string) *background {
	t.Helper()
	b := &background{Cmd: program(t, args...), code: make(chan int, 1)}
	b.Stdout, b.Stderr = &b.out, &b.errOut
	var err error
	if b.in, err = b.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = b.Wait() // the exit status says the same
		b.code <- b.ProcessState.ExitCode()
	}()
	t.Cleanup(func() { <-ended }) // the end of t.Context has killed it
	return b
}
