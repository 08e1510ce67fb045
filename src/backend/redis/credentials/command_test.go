package credentials

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/testbed/testfiles"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secretMark is in all secrets of these tests.
const secretMark = "s3cr3t-mark"

// script returns the line of a command that runs a shell script. A shell reads it, since a file that was just written
// cannot be executed while another test starts a program.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a program")
	testfiles.Write(t, path, text+"\n")
	return "/bin/sh '" + path + "'"
}

// run runs a program once.
func run(t *testing.T, cfg CommandConfig) (Token, error) {
	t.Helper()
	c, err := NewCommand(cfg)
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := c.mint(t.Context())
	return token, err
}

func TestPrintedTokens(t *testing.T) {
	t.Parallel()
	end := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		name, output string
		want         Token
		err          string
	}{
		{
			"Kubernetes",
			`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"` + secretMark +
				`","expirationTimestamp":"2030-01-02T03:04:05Z"}}`,
			Token{"fallback", secretMark, end},
			"",
		},
		{
			"Kubernetes, without an end", `{"kind":"ExecCredential","status":{"token":"` + secretMark + `"}}`,
			Token{"fallback", secretMark, time.Time{}},
			"",
		},
		{
			"AWS",
			`{"Version":1,"AccessKeyId":"limits","SecretAccessKey":"` + secretMark +
				`","Expiration":"2030-01-02T04:04:05+01:00"}`,
			Token{"limits", secretMark, end},
			"",
		},
		{
			"AWS, without an end", `{"Version": 1, "AccessKeyId": "limits", "SecretAccessKey": "` + secretMark + `"}`,
			Token{"limits", secretMark, time.Time{}},
			"",
		},
		{
			"keys of AWS", `{"Version":1,"AccessKeyId":"AKIA","SecretAccessKey":"` + secretMark + `","SessionToken":"x"}`,
			Token{},
			"keys of AWS, which are no password of Redis",
		},
		{
			"a certificate", `{"kind":"ExecCredential","status":{"clientKeyData":"` + secretMark + `"}}`,
			Token{},
			"without status.token",
		},
		{"garbage", secretMark, Token{}, "printed 12 bytes that are not the JSON"},
		{"nothing", "", Token{}, "printed 1 bytes that are not the JSON"},
		{"other JSON", `{"token":"` + secretMark + `"}`, Token{}, "with neither"},
		{"another version", `{"Version":2,"SecretAccessKey":"` + secretMark + `"}`, Token{}, "with neither"},
		{
			"an odd end", `{"kind":"ExecCredential","status":{"token":"t","expirationTimestamp":"` + secretMark + `"}}`,
			Token{},
			"an expiry that is not a time such as",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := run(t, CommandConfig{Line: script(t, "cat <<'E'\n"+tt.output+"\nE"), User: "fallback"})
			if tt.err == "" && (err != nil || got.User != tt.want.User || got.Password != tt.want.Password ||
				!got.Expires.Equal(tt.want.Expires)) {
				t.Errorf("got %s %s %v, %v", got.User, got.Password, got.Expires, err)
			}
			if text := fmt.Sprint(err); tt.err != "" && (!strings.Contains(text, tt.err) || strings.Contains(text, secretMark)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A program that fails, floods or hangs ends, with all that it started, and no error has what it wrote.
func TestBadPrograms(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, err string }{
		{"fails", "echo " + secretMark + "; exit 3", "exit status 3"},
		{"complains", "echo " + secretMark + " >&2; exit 1", "what it wrote to stderr is not logged"},
		{"floods", "yes " + secretMark, "printed more than 65536 bytes and was killed"},
		{"floods stderr", "yes " + secretMark + " 2>&1 >&2 | head -c 1000000 >&2; exit 1", "exit status 1"},
		{"kills itself", "kill -9 $$", "signal: killed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := run(t, CommandConfig{Line: script(t, tt.text)})
			if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), secretMark) {
				t.Errorf("got %v, want %s", err, tt.err)
			}
		})
	}
	t.Run("hangs", func(t *testing.T) {
		t.Parallel()
		alive := filepath.Join(t.TempDir(), "alive")
		c, err := NewCommand(CommandConfig{Line: script(t, "while :; do touch "+alive+"; sleep 0.1; done & wait")})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		started := time.Now()
		_, _, err = c.mint(ctx)
		took := time.Since(started)
		if !strings.Contains(fmt.Sprint(err), "did not end within") || took > 5*time.Second {
			t.Errorf("got %v after %v", err, took)
		}
		if err := os.Remove(alive); err != nil {
			t.Error(err)
		}
		time.Sleep(500 * time.Millisecond)
		if _, err := os.Stat(alive); err == nil {
			t.Error("a child of the program lives")
		}
	})
}

// A program gets the environment that it was given, and what plugins of Kubernetes need.
func TestEnvironmentOfAProgram(t *testing.T) {
	t.Setenv("RATELIMIT_TEST_INHERITED", secretMark)
	const text = `[ -z "$RATELIMIT_TEST_INHERITED" ] && [ "$KEPT" = yes ] && ` +
		`case $KUBERNETES_EXEC_INFO in *client.authentication.k8s.io/v1*) echo '{"Version":1,"SecretAccessKey":"x"}';; esac`
	environ := []string{"KEPT=yes", "PATH=/usr/bin:/bin"}
	if _, err := run(t, CommandConfig{Line: script(t, text), Environ: environ}); err != nil {
		t.Error(err)
	}
}

func TestSplitLine(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"a":                         {"a"},
		" a  b\tc ":                 {"a", "b", "c"},
		`"/opt/my tools/a" --x='y'`: {"/opt/my tools/a", "--x=y"},
		`a '' "b'c"`:                {"a", "", "b'c"},
		`a $HOME;b`:                 {"a", "$HOME;b"},
	} {
		if got, err := splitLine(line); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", line, got, err)
		}
	}
	for line, want := range map[string]string{
		"": "names no program", " ": "names no program", "''": "names no program", `a "b`: "is not closed",
		"/no/such/program x": "no such file",
	} {
		if _, err := NewCommand(CommandConfig{Line: line}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// No verb of fmt shows the secret of a token.
func TestTokensHideTheirSecret(t *testing.T) {
	t.Parallel()
	token := Token{User: "u", Password: secretMark}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		got := fmt.Sprintf(verb+" "+verb, token, &token)
		if strings.Contains(got, secretMark) || strings.Contains(got, fmt.Sprintf("%x", secretMark)) {
			t.Errorf("%s: %s", verb, got)
		}
	}
}
