package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/testbed/harness"
)

// recordedRules count by user with several algorithms, whose answers depend on the time.
const recordedRules = `
domain: d
descriptors:
  - key: user
    charge: path
    rate_limit: {unit: second, requests_per_unit: 20}
    descriptors:
      - key: path
        rate_limits:
          - {algorithm: gcra, unit: second, requests_per_unit: 30, burst: 2}
          - {algorithm: sliding_window, period: 300ms, requests_per_unit: 6}
  - key: tokens
    rate_limit: {algorithm: sliding_window_counter, unit: second, requests_per_unit: 100, hold: 10s, hold_id: id}
  - key: calls
    rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: 10s, hold_id: id}
  - key: part
    rate_limit: {algorithm: first_hit_window, period: 200ms, requests_per_unit: 3, enforce_percent: 50}
`

// userRequests returns the requests of one user, in the order in which he sends them, as JSON.
func userRequests(user string) (list []string) {
	add := func(descriptors ...string) {
		list = append(list, `{"domain":"d","descriptors":[`+strings.Join(descriptors, ",")+`]}`)
	}
	d := func(entries, more string) string {
		var pairs []string
		for pair := range strings.SplitSeq(entries, ",") {
			key, value, _ := strings.Cut(pair, "=")
			pairs = append(pairs, fmt.Sprintf(`{"key":%q,"value":%q}`, key, value))
		}
		return `{"entries":[` + strings.Join(pairs, ",") + `]` + more + `}`
	}
	for i := range 25 {
		id := fmt.Sprintf("%s-%d", user, i)
		add(d("user="+user, ""))
		add(d("user="+user+",path=/pay", ""), d("part="+user, ""))
		add(d("user="+user+",path=/look", `,"hitsAddend":"2"`))
		add(d("calls="+user+",id="+id, ""), d("tokens="+user+",id="+id, `,"hitsAddend":"40"`))
		if i%3 > 0 {
			add(d("calls="+user+",id="+id+",hold=release", ""),
				d("tokens="+user+",id="+id+",hold=settle", fmt.Sprintf(`,"hitsAddend":"%d"`, i)))
		}
		if i%5 == 0 {
			add(d("user="+user, `,"hitsAddend":"3","isNegativeHits":true`), d("calls="+user+",id="+user+"-0,hold=release", ""))
		}
		add(d("user="+user+",own=1", `,"limit":{"requestsPerUnit":10,"unit":"SECOND"}`))
		add(d("unknown="+user, ""))
	}
	return list
}

// sendAll sends the requests of some users at the same time, half of the users over gRPC and half to /json. It returns
// how many were refused.
func sendAll(t *testing.T, s *service, users []string) (requests, refused int) {
	t.Helper()
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // Nothing is lost.
	stub := rlsv3.NewRateLimitServiceClient(conn)
	overGRPC := func(text string) (bool, error) {
		req := new(rlsv3.RateLimitRequest)
		if err := protojson.Unmarshal([]byte(text), req); err != nil {
			return false, err
		}
		answer, err := stub.ShouldRateLimit(t.Context(), req)
		return answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT, err
	}
	overJSON := func(text string) (bool, error) {
		resp, err := client.Post("http://"+s.http+"/json", "application/json", strings.NewReader(text))
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusTooManyRequests {
			return false, errors.New(resp.Status)
		}
		return resp.StatusCode == http.StatusTooManyRequests, nil
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	for i, user := range users {
		ask := []func(string) (bool, error){overGRPC, overJSON}[i%2]
		all.Go(func() {
			for _, text := range userRequests(user) {
				over, err := ask(text)
				mu.Lock()
				if requests++; over {
					refused++
				}
				mu.Unlock()
				if err != nil {
					t.Errorf("%s: %v", text, err)
					return
				}
			}
		})
	}
	all.Wait()
	return requests, refused
}

// startRecording starts `ratelimit record` and waits until it runs. wait returns the recording when it has a number of
// requests, and ends it with Ctrl-C; want is 0 for any number.
func startRecording(t *testing.T, s *service, name string, args ...string) (path string, wait func(want int) string) {
	t.Helper()
	binary, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	running := strings.Count(s.log(t), "requests are being recorded")
	path = filepath.Join(t.TempDir(), name)
	cmd := exec.Command(binary, append([]string{"record", "--url", s.debug, "-o", path}, args...)...)
	cmd.Env = []string{}
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.until(t, "the recording runs", func() error {
		if strings.Count(s.log(t), "requests are being recorded") == running {
			return errors.New("it does not")
		}
		return nil
	})
	return path, func(want int) string {
		s.until(t, "the recording has all requests", func() error {
			text, err := os.ReadFile(path)
			if n := bytes.Count(text, []byte("\n")); err != nil || want > 0 && n < want {
				return fmt.Errorf("it has %d lines of %d: %w", n, want, errors.Join(err, context.Canceled))
			}
			return nil
		})
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("record: %v", err)
		}
		return errOut.String()
	}
}

// A recording of real traffic is replayed with the answers that were given live: a whole one, and one of some users. So
// `ratelimit diff` finds no other answer, except with other rules.
func TestRecordingIsReplayed(t *testing.T) {
	t.Parallel()
	rules, other := newRuleDir(t), newRuleDir(t)
	rules.put(t, "d.yaml", recordedRules)
	other.put(t, "d.yaml", strings.Replace(recordedRules, "requests_per_unit: 20}", "requests_per_unit: 10}", 1))
	s := startService(t, append(rules.env(), "DIVVY_PORT=")...)
	whole, waitWhole := startRecording(t, s, "whole.jsonl")
	part, waitPart := startRecording(t, s, "part.jsonl", "--sample", "1/2", "--by", "user", "--domain", "d")
	users := strings.Fields("al bo cy di ed flo gus hal")
	requests, refused := sendAll(t, s, users)
	said := waitWhole(requests)
	waitPart(1)
	if !strings.HasPrefix(said, fmt.Sprintf("%d requests in ", requests)) || strings.Contains(said, "lost") ||
		refused < 50 {
		t.Errorf("%d requests, %d refused; record says: %s", requests, refused, said)
	}
	for _, path := range []string{whole, part} {
		out, err := run("simulate", "--config", rules.files, path)
		if err != nil || !strings.Contains(out, "\nanswers as recorded: all ") {
			t.Errorf("%s: %v\n%s", path, err, out[max(0, len(out)-2000):])
		}
		out, err = run("diff", rules.files, rules.files, "--requests", path)
		if err != nil {
			t.Errorf("diff of the same rules, %s: %v\n%s", path, err, out)
		}
	}
	if out, err := run("diff", rules.files, other.files, "--requests", whole); err != nil &&
		!strings.Contains(out, "tightened") {
		t.Errorf("diff of other rules: %v\n%s", err, out)
	} else if !strings.Contains(out, "d.user") {
		t.Errorf("diff of other rules:\n%s", out)
	}
	if !strings.Contains(s.log(t), "the recording of requests has ended") {
		t.Error("the log does not tell of the end of the recordings")
	}
}

// A service that stops ends its recordings, and does not wait for them.
func TestRecordingEndsWithTheService(t *testing.T) {
	t.Parallel()
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", recordedRules)
	s := startService(t, rules.env()...)
	binary, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "record", "--url", s.debug, "--for", "1h")
	cmd.Env = []string{}
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.until(t, "the recording runs", func() error {
		if !strings.Contains(s.log(t), "requests are being recorded") {
			return errors.New("it does not")
		}
		return nil
	})
	s.stop(t)
	_ = cmd.Wait() // The exit code is checked below.
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(errOut.String(), "the recording broke off") {
		t.Errorf("record: exit %d, %s", code, errOut.String())
	}
}
