package integration

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// However a simulation on Redis ends, it has written what it decided and takes
// its keys with it.
func TestSimulateCleansUp(t *testing.T) {
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors:\n- {key: ip, rate_limit: {unit: year, requests_per_unit: 2}}\n")
	server := redistest.Start(t, redistest.Options{})
	server.Do(t, "SET", "mine", "1")
	const line = `{"at":"1s","request":{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"1"}]}]}}` + "\n"

	for _, tt := range []struct {
		name string
		end  func(cmd *exec.Cmd, in io.WriteCloser, out io.ReadCloser) error
		code int
		says string
	}{
		{
			"end of input", func(_ *exec.Cmd, in io.WriteCloser, _ io.ReadCloser) error { return in.Close() }, 0,
			"requests: 1; OK: 1",
		},
		{
			"Ctrl-C", func(cmd *exec.Cmd, _ io.WriteCloser, _ io.ReadCloser) error { return cmd.Process.Signal(os.Interrupt) },
			1, "simulate: interrupted",
		},
		{"SIGTERM", func(cmd *exec.Cmd, _ io.WriteCloser, _ io.ReadCloser) error {
			return cmd.Process.Signal(syscall.SIGTERM)
		}, 1, "simulate: interrupted"},
		{"a reader that goes", func(_ *exec.Cmd, in io.WriteCloser, out io.ReadCloser) error {
			_ = out.Close() // the reading end of a pipe
			_, err := io.WriteString(in, line)
			return err
		}, 1, "simulate: the output: write"},
		{"a bad line", func(_ *exec.Cmd, in io.WriteCloser, _ io.ReadCloser) error {
			_, err := io.WriteString(in, "\n{\n")
			return err
		}, 2, "\nstdin:3: the line is not JSON: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command(path, "simulate", "--config", rules.files, "--backend", "redis", "--redis-url",
				"redis://"+server.Addr)
			cmd.Env = []string{}
			var errOut bytes.Buffer
			cmd.Stderr = &errOut
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(in, line); err != nil {
				t.Fatal(err)
			}
			answer, err := bufio.NewReader(out).ReadString('\n')
			if err != nil || !strings.HasPrefix(answer, `{"at":"2026-01-01T00:00:01Z","response":{"overallCode":"OK",`) {
				t.Errorf("%v: %s", err, answer)
			}
			if n := server.Do(t, "DBSIZE"); n != int64(2) {
				t.Errorf("%v keys while it runs", n)
			}
			if err := tt.end(cmd, in, out); err != nil {
				t.Fatal(err)
			}
			err = cmd.Wait()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if code := cmd.ProcessState.ExitCode(); code != tt.code || !strings.Contains(errOut.String(), tt.says) {
				t.Errorf("%v: %s", cmd.ProcessState, errOut.String())
			}
			if keys := fmt.Sprint(server.Do(t, "KEYS", "*")); keys != "[mine]" {
				t.Errorf("keys that are left: %s", keys)
			}
		})
	}
}
