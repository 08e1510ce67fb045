package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

// secretFile is a file of secrets.
type secretFile string

func newSecretFile(t *testing.T, name, text string) secretFile {
	t.Helper()
	f := secretFile(filepath.Join(t.TempDir(), name))
	f.put(t, text)
	return f
}

func (f secretFile) put(t *testing.T, text string) {
	t.Helper()
	testfiles.Write(t, string(f)+".new", text)
	if err := os.Rename(string(f)+".new", string(f)); err != nil {
		t.Fatal(err)
	}
}

// The token of the debug port and the password of RESP change without a refused request: two are valid meanwhile.
func TestSecretsRotate(t *testing.T) {
	t.Parallel()
	token, password := newSecretFile(t, "token", "t-old\n"), newSecretFile(t, "password", "p-old\n")
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", tokenRules)
	s := startService(t, append(rules.env(), "DEBUG_TOKEN_FILE="+string(token), "RESP_HOST=127.0.0.1", "RESP_PORT=0",
		"RESP_PASSWORD_FILE="+string(password), "LOG_LEVEL=trace", "DISABLE_STATS=true")...)
	for i, step := range []struct {
		token, password  string
		changes, refused int      // that the log has so far, of both files
		valid, invalid   []string // few are invalid, since guesses are bounded
	}{
		{"t-old\n", "p-old\n", 0, 0, []string{"old"}, []string{"new"}},
		{"t-old\nt-new\n", "p-old\np-new\n", 2, 0, []string{"old", "new"}, []string{"other"}},
		{"t-new\nt-old\n", "p-new\np-old\n", 4, 0, []string{"old", "new"}, nil},
		{"", "", 4, 2, []string{"old", "new"}, nil},
		{"t-new", "p-new", 6, 2, []string{"new"}, []string{"old"}},
	} {
		token.put(t, step.token)
		password.put(t, step.password)
		s.until(t, fmt.Sprintf("step %d", i), func() error {
			log := s.log(t)
			changes, refused := strings.Count(log, "_FILE has changed: "), strings.Count(log, "the old secrets stay valid")
			if changes != step.changes || refused != step.refused {
				return fmt.Errorf("%d changes, %d files were refused", changes, refused)
			}
			return nil
		})
		for want, names := range map[bool][]string{true: step.valid, false: step.invalid} {
			for _, name := range names {
				if got := s.debugAccepts(t, "t-"+name); got != want {
					t.Errorf("step %d: the token %s is valid: %t", i, name, got)
				}
				if got := s.respAccepts(t, "p-"+name); got != want {
					t.Errorf("step %d: the password %s is valid: %t", i, name, got)
				}
			}
		}
	}
	log := s.log(t)
	for _, want := range []string{
		"DEBUG_TOKEN_FILE has changed: 2 of its secrets are valid", "RESP_PASSWORD_FILE has changed: 1 of its secrets",
		"DEBUG_TOKEN_FILE: " + string(token) + ": 0 lines with a secret", "the old secrets stay valid",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %q", want)
		}
	}
	for _, secret := range []string{"t-old", "t-new", "p-old", "p-new"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log has %s", secret)
		}
	}
}

// debugAccepts reports whether the debug port takes a token.
func (s *service) debugAccepts(t *testing.T, token string) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.debug+"/rlconfig", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// respAccepts reports whether the RESP port takes a password.
func (s *service) respAccepts(t *testing.T, password string) bool {
	t.Helper()
	c, err := redistest.Dial(s.resp, redistest.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, err = c.Do("AUTH", password)
	return err == nil
}
