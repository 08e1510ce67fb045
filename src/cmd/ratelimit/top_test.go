package main

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/src/tools/command"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// top and denials show what a service has denied, if they have its token.
func TestTopAndDenials(t *testing.T) {
	t.Setenv("DEBUG_TOKEN", "") // It would be sent instead of none.
	s := launch(t, oneRule, "DEBUG_TOKEN=secret")
	s.until("ready", s.healthy)
	address := s.address("debug")
	token := filepath.Join(t.TempDir(), "token")
	testfiles.Write(t, token, "secret\n")
	for range 3 {
		if code := s.ask("10.0.0.7\u202e"); code != http.StatusOK && code != http.StatusTooManyRequests {
			t.Fatal(code)
		}
	}
	for _, name := range []string{"top", "denials"} {
		if code, _, errOut := call(t, "ratelimit", name, "--address", address); code != command.ExitError ||
			!strings.Contains(errOut, "needs a token: set DEBUG_TOKEN") {
			t.Errorf("%s without the token: exit %d, %s", name, code, errOut)
		}
		if code, _, errOut := call(t, "ratelimit", name, "--token-file", token, "--address",
			s.address("http")); code != command.ExitError || !strings.Contains(errOut, "name the debug port") {
			t.Errorf("%s of another port: exit %d, %s", name, code, errOut)
		}
	}
	explain := []string{"ratelimit", "explain", "--address", address, "--domain", "d", "--descriptors", "ip=10.0.0.7"}
	if code, _, errOut := call(t, explain...); code != command.ExitError ||
		!strings.Contains(errOut, "needs a token: set DEBUG_TOKEN") {
		t.Errorf("explain without the token: exit %d, %s", code, errOut)
	}
	if code, text, errOut := call(t, append(explain, "--token-file", token)...); code != command.ExitOK ||
		!strings.Contains(text, "now the request passes") {
		t.Errorf("explain with the token: exit %d, %s%s", code, text, errOut)
	}
	var out string
	harness.Until(t, "top shows the denied subject", func() bool {
		code, text, errOut := call(t, "ratelimit", "top", "--domain", "d", "--token-file", token, "--address", address)
		if code != command.ExitOK {
			t.Fatalf("exit %d, %s", code, errOut)
		}
		out = text
		_, denied, _ := strings.Cut(text, "MOST DENIED")
		denied, _, _ = strings.Cut(denied, "HOTTEST")
		return strings.Contains(denied, "10.0.0.7") && strings.Contains(text, "\nd.ip ") // Rates appear after a second.
	})
	for _, want := range []string{"ready; memory; 1 rule in 1 domain", "\nd.ip ", "2 per year"} {
		if !strings.Contains(out, want) || strings.Contains(out, "\u202e") {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	_, out, _ = call(t, "ratelimit", "top", "--json", "--token-file", token, "--address", address)
	var snapshot struct {
		Denied []struct{ Rule string }
	}
	if err := json.Unmarshal([]byte(out), &snapshot); err != nil || len(snapshot.Denied) != 1 ||
		snapshot.Denied[0].Rule != "d.ip" {
		t.Errorf("%v, %+v in\n%s", err, snapshot, out)
	}
	harness.Until(t, "denials prints the denial", func() bool {
		_, out, _ = call(t, "ratelimit", "denials", "--rule", "d.ip", "--token-file", token, "--address", address)
		return strings.Count(out, "\n") == 2
	})
	if !strings.Contains(out, "json      d       d.ip") || !strings.Contains(out, `10.0.0.7\u202e`) {
		t.Errorf("got\n%s", out)
	}
}
