package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"ratelimit/src/tools/bench"
	"ratelimit/src/tools/command"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

func TestBench(t *testing.T) {
	t.Parallel()
	s := launch(t, `
domain: bench
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 10}
`)
	s.until("ready", s.healthy)
	args := []string{"ratelimit", "bench", "--warmup", "0s", "--requests", "500", "--workload", "overlimit"}
	if runtime.GOOS == "linux" {
		args = append(args, "--pid", fmt.Sprintf("service=%d", os.Getpid()), "-pid", fmt.Sprint(os.Getpid()))
	}
	args = append(args, "--address", s.address("grpc"))
	code, out, errOut := call(t, append(args, "--json")...)
	var r bench.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != command.ExitOK || errOut != "" {
		t.Fatalf("exit %d, %v: %s%s", code, err, out, errOut)
	}
	if r.Requests != 500 || r.Answers["OK"] != 10 || r.Answers["OVER_LIMIT"] != 490 || strings.Count(out, "\n") != 1 {
		t.Error(out)
	}
	if _, ok := r.CPU["service"]; runtime.GOOS == "linux" && (!ok || len(r.CPU) != 2) {
		t.Error(out)
	}
	code, out, errOut = call(t, append(args, "--rate", "20000")...)
	if code != command.ExitOK || errOut != "" ||
		!strings.Contains(out, "overlimit, 2 x 32 calls in flight, 20000 calls due a second\n") ||
		!regexp.MustCompile(`\n +0 +500 +0\n`).MatchString(out) {
		t.Errorf("exit %d: %s%s", code, out, errOut)
	}
	file := filepath.Join(t.TempDir(), "requests.jsonl")
	if err := os.WriteFile(file, []byte(`{"domain":"none","descriptors":[{"entries":[{"key":"k"}]}]}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errOut := call(t, "ratelimit", "bench", "--requests-file", file, "--duration", "20ms", "--address",
		s.address("grpc")); code != command.ExitOK || !strings.Contains(out, file+", 2 x 32") {
		t.Errorf("exit %d: %s%s", code, out, errOut)
	}
}

// Results are printed also with exit status 1.
func TestBenchWithoutAnswers(t *testing.T) {
	t.Parallel()
	s := launch(t, oneRule)
	s.until("ready", s.healthy)
	file := filepath.Join(t.TempDir(), "requests.jsonl")
	testfiles.Write(t, file, "{}")
	code, out, errOut := call(t, "ratelimit", "bench", "--requests-file", file, "--requests", "10", "--warmup", "0s",
		"--address", s.address("grpc"))
	if code != command.ExitError || !strings.Contains(out, "error INVALID_ARGUMENT") ||
		!strings.Contains(errOut, "every call failed, the first with INVALID_ARGUMENT") {
		t.Errorf("exit %d: %s%s", code, out, errOut)
	}
}

func TestBenchNull(t *testing.T) {
	t.Parallel()
	null := startProgram(t, "ratelimit", "bench", "--null", "127.0.0.1:0", "--null-workers", "2")
	line := regexp.MustCompile(`^listening on (\S+)\n$`)
	harness.Await(t, harness.Deadline, "the server listens", func() error {
		if !line.MatchString(null.out.String()) {
			return fmt.Errorf("%s%s", null.out.String(), null.errOut.String())
		}
		return nil
	})
	code, text, problem := call(t, "ratelimit", "bench", "--requests", "100", "--warmup", "0s", "--address",
		line.FindStringSubmatch(null.out.String())[1])
	if code != command.ExitOK || !regexp.MustCompile(`\n +100 +0 +0\n`).MatchString(text) {
		t.Errorf("exit %d: %s%s", code, text, problem)
	}
	if err := null.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := <-null.code; code != command.ExitOK || null.errOut.String() != "" {
		t.Errorf("exit %d: %s", code, null.errOut.String())
	}
}

// The help names every field of the JSON.
func TestBenchHelpNamesFields(t *testing.T) {
	_, help, _ := call(t, "ratelimit", "bench", "--help")
	var names func(reflect.Type)
	names = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Map {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct {
			return
		}
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !regexp.MustCompile(`\b` + name + `\b`).MatchString(help) {
				t.Errorf("bench --help lacks %s", name)
			}
			names(f.Type)
		}
	}
	names(reflect.TypeFor[bench.Result]())
}
