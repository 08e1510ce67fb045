package integration

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// denyAll is a rule file whose domain refuses every request.
func denyAll(domain string) string {
	return "domain: " + domain + "\ndescriptors:\n- {key: any, rate_limit: {unit: year, requests_per_unit: 0}}\n"
}

// write makes text the content of a new file, whose directory it makes, too.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// denies returns which of the domains refuse a request.
func (s *service) denies(t *testing.T, domains ...string) (list string) {
	t.Helper()
	for _, domain := range domains {
		_, answer := s.ask(t, domain, "any=1")
		if answer.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT {
			list += domain + " "
		}
	}
	return strings.TrimSpace(list)
}

// page returns the status and the text of a page on one of the service's ports.
func page(t *testing.T, address, path string) (status int, text string) {
	t.Helper()
	resp, err := client.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// Files and directories beside the app directory count if their names begin with its name and a dot, as for
// envoyproxy/ratelimit with its default RUNTIME_WATCH_ROOT=true.
func TestFilesBesideTheAppDirectory(t *testing.T) {
	t.Parallel()
	domains := []string{"app", "beside", "dotted", "deep", "other"}
	for _, tt := range []struct {
		name, want, afterwards string
		env                    []string
		withAppDirectory       bool
	}{
		{name: "by default", withAppDirectory: true, want: "app beside dotted deep", afterwards: "app dotted deep"},
		{name: "without the app directory", want: "beside dotted deep", afterwards: "dotted deep"},
		{
			name: "RUNTIME_WATCH_ROOT=false", withAppDirectory: true, env: []string{"RUNTIME_WATCH_ROOT=false"}, want: "app",
			afterwards: "app",
		},
		{name: "another app directory", env: []string{"RUNTIME_APPDIRECTORY=other"}, want: "other", afterwards: "other"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			dir := filepath.Join(root, "ratelimit")
			if tt.withAppDirectory {
				write(t, filepath.Join(dir, "config/app.yaml"), denyAll("app"))
			}
			write(t, filepath.Join(dir, "config.yaml"), denyAll("beside"))
			write(t, filepath.Join(dir, "config.one.yaml"), denyAll("dotted"))
			write(t, filepath.Join(dir, "config.d/e/deep.yaml"), denyAll("deep"))
			write(t, filepath.Join(dir, "other.yaml"), denyAll("other"))
			write(t, filepath.Join(dir, "configs.yaml"), "not rules")
			s := startService(t, append([]string{
				"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=ratelimit",
				"RUNTIME_DEBOUNCE=10ms",
			}, tt.env...)...)
			if got := s.denies(t, domains...); got != tt.want {
				t.Errorf("rules of %q are in force, want %q", got, tt.want)
			}
			if err := os.Remove(filepath.Join(dir, "config.yaml")); err != nil {
				t.Fatal(err)
			}
			s.until(t, "the file that was removed is no longer in force", func() error {
				if got := s.denies(t, domains...); got != tt.afterwards {
					return fmt.Errorf("rules of %q are in force, want %q", got, tt.afterwards)
				}
				return nil
			})
		})
	}
}

// A link to a file outside is followed, as envoyproxy/ratelimit does. A link that leads nowhere, or to a directory, is
// a warning beside good files, and what was in force before stays.
func TestLinksAmongRules(t *testing.T) {
	t.Parallel()
	rules, outside := newRuleDir(t), t.TempDir()
	write(t, filepath.Join(outside, "out.yaml"), denyAll("out"))
	write(t, filepath.Join(outside, "dir/in.yaml"), denyAll("in"))
	rules.put(t, "a.yaml", denyAll("a"))
	link(t, filepath.Join(outside, "out.yaml"), filepath.Join(rules.files, "out.yaml"))
	link(t, filepath.Join(outside, "dir"), filepath.Join(rules.files, "dir"))
	link(t, "nowhere", filepath.Join(rules.files, "dangling.yaml"))
	link(t, "circle.yaml", filepath.Join(rules.files, "circle.yaml"))
	link(t, "..", filepath.Join(rules.files, "up"))
	s := startService(t, append(rules.env(), "RUNTIME_DEBOUNCE=10ms")...)
	if got := s.denies(t, "a", "out", "in"); got != "a out" {
		t.Errorf("rules of %q are in force, want a and out", got)
	}
	for _, name := range []string{"dir", "dangling.yaml", "circle.yaml", "up"} {
		if !strings.Contains(s.log(t), "level=warning msg=\""+filepath.Join(rules.files, name)+": the link leads ") {
			t.Errorf("no warning of %s", name)
		}
	}
	if status, text := s.healthcheck(t); status != http.StatusOK {
		t.Errorf("/healthcheck is %d: %s", status, text)
	}
	logged := len(s.log(t))
	if err := os.Remove(filepath.Join(outside, "out.yaml")); err != nil {
		t.Fatal(err)
	}
	s.logs(t, logged, "out.yaml does not exist; fix the link or remove it")
	if got := s.denies(t, "a", "out"); got != "a out" {
		t.Errorf("after the target is gone, rules of %q are in force, want a and out", got)
	}
	write(t, filepath.Join(outside, "out.yaml"), denyAll("out2"))
	s.until(t, "the new target is in force", func() error {
		if got := s.denies(t, "a", "out", "out2"); got != "a out2" {
			return fmt.Errorf("rules of %q are", got)
		}
		return nil
	})
}

// A link to a secret is a mistake that operators see. The ports of callers quote nothing of the file, and name neither
// it nor the link.
func TestLinkToASecretIsNotQuotedToCallers(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{
		"tok3n-abc", "tok3n: abc", "domain: tok3n\ndescriptors: [tok3n]", "[tok3n",
		"domain: d\ntok3n: 1", "domain: tok3n\ndescriptors:\n- {key: k, rate_limit: {unit: tok3n}}",
	} {
		rules, outside := newRuleDir(t), t.TempDir()
		write(t, filepath.Join(outside, "s3cret"), secret+"\n")
		rules.put(t, "a.yaml", denyAll("a"))
		link(t, filepath.Join(outside, "s3cret"), filepath.Join(rules.files, "l1nk.yaml"))
		s := runService(t, rules.env()...)
		s.logs(t, 0, "l1nk.yaml")
		s.readLog(t)
		if s.http == "" {
			t.Fatal("the service does not listen")
		}
		for _, path := range []string{"/healthcheck", "/readyz", "/livez", "/json", "/"} {
			status, text := page(t, s.http, path)
			for _, word := range []string{"tok3n", "l1nk", "s3cret", rules.root, outside} {
				if strings.Contains(text, word) {
					t.Errorf("%q: %s tells callers of %s: %d %s", secret, path, word, status, text)
				}
			}
		}
		if status, text := page(t, s.debug, "/readyz"); status != http.StatusServiceUnavailable ||
			!strings.Contains(text, "l1nk.yaml") {
			t.Errorf("%q: operators read %d %s", secret, status, text)
		}
	}
}

// A service whose rule files were all left out for their names is not ready, and says which files these are.
func TestOnlyFilesThatAreLeftOut(t *testing.T) {
	t.Parallel()
	rules := newRuleDir(t)
	rules.put(t, "shop.conf", denyAll("shop"))
	rules.put(t, "api.yaml.tmpl", denyAll("api"))
	rules.put(t, "README.md", "hello")
	s := runService(t, append(rules.env(), "RUNTIME_DEBOUNCE=10ms")...)
	s.logs(t, 0, "which leaves out api.yaml.tmpl, shop.conf; rename what holds rules")
	s.readLog(t)
	if status, text := s.healthcheck(t); status == http.StatusOK {
		t.Errorf("/healthcheck is %d: %s", status, text)
	}
	if status, text := page(t, s.debug, "/readyz"); status != http.StatusServiceUnavailable ||
		!strings.Contains(text, "api.yaml.tmpl, shop.conf") {
		t.Errorf("/readyz on the debug port is %d: %s", status, text)
	}
	if out, err := run("check", rules.files); err == nil || !strings.Contains(out, "error: ") ||
		!strings.Contains(out, "api.yaml.tmpl, shop.conf") {
		t.Errorf("check says %v: %s", err, out)
	}
	rules.put(t, "shop.yaml", denyAll("shop"))
	s.awaitReady(t)
	if got := s.denies(t, "shop"); got != "shop" {
		t.Errorf("rules of %q are in force", got)
	}
}

// What is given to `check` by mistake is named, with what to do instead.
func TestCheckNamesTheMistake(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{
			"map.yaml", "apiVersion: v1\nkind: ConfigMap\ndata:\n  a.yaml: |\n    domain: d\n",
			`a Kubernetes object, "ConfigMap" of "v1", not a rule file; write each text below ` + "`data` to a file of its own",
		},
		{
			"crd.json", `{"apiVersion": "example.com/v1", "kind": "RateLimit", "spec": {"domain": "d"}}`,
			`a Kubernetes object, "RateLimit" of "example.com/v1", not a rule file; apply it to the cluster`,
		},
		{
			"number.yaml", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 1e3}}\n",
			`number.yaml:3:55: requests_per_unit is a floating-point number: "1e3"; write 1000`,
		},
		{
			"value.yaml", "domain: d\ndescriptors:\n- {key: k, value: 1e3}\n",
			`value.yaml:3:19: value is a floating-point number, not text: "1e3"; write "1e3", in quotes`,
		},
	} {
		path := filepath.Join(t.TempDir(), tt.name)
		write(t, path, tt.text)
		out, err := run("check", path)
		if err == nil || !strings.Contains(out, tt.want) || strings.Count(out, "error: ") != 1 {
			t.Errorf("%s: %v\n got %s\nwant %s", tt.name, err, out, tt.want)
		}
	}
}

// An empty `value` matches every value, as for envoyproxy/ratelimit, and the service and `check` say so. `exact` is for
// the empty value.
func TestEmptyValue(t *testing.T) {
	t.Parallel()
	rules := newRuleDir(t)
	rules.put(t, "a.yaml", `domain: d
descriptors:
- {key: every, value: "", rate_limit: {unit: year, requests_per_unit: 0}}
- {key: user, exact: "", rate_limit: {unit: year, requests_per_unit: 0}}
- {key: user, exact: "a*", rate_limit: {unit: year, requests_per_unit: 0}}
- {key: user, rate_limit: {unit: year, requests_per_unit: 9}}
- key: path
  exact: ""
  descriptors:
  - {key: user, exact: "", rate_limit: {unit: year, requests_per_unit: 0}}
`)
	const warning = `an empty value matches every value of the key \"every\"; remove it if that is meant; write `
	s := startService(t, rules.env()...)
	if log := s.log(t); !strings.Contains(log,
		"level=warning msg=\""+filepath.Join(rules.files, "a.yaml")+":3:16: "+warning) ||
		strings.Count(log, "an empty value") != 1 {
		t.Error("the log has no such warning, or more")
	}
	out, err := run("check", rules.files)
	if err != nil || strings.Count(out, "warning: ") != 1 || !strings.Contains(out, strings.ReplaceAll(warning, `\`, "")) {
		t.Errorf("check: %v: %s", err, out)
	}
	for _, tt := range []struct {
		descriptor string
		want       rlsv3.RateLimitResponse_Code
	}{
		{"every=x", rlsv3.RateLimitResponse_OVER_LIMIT},
		{"every=", rlsv3.RateLimitResponse_OVER_LIMIT},
		{"user=", rlsv3.RateLimitResponse_OVER_LIMIT},
		{"user=a*", rlsv3.RateLimitResponse_OVER_LIMIT},
		{"user=ab", rlsv3.RateLimitResponse_OK},
		{"user=x", rlsv3.RateLimitResponse_OK},
		{"path=,user=", rlsv3.RateLimitResponse_OVER_LIMIT},
		{"path=x,user=", rlsv3.RateLimitResponse_OK},
		{"path=,user=x", rlsv3.RateLimitResponse_OK},
	} {
		if _, answer := s.ask(t, "d", tt.descriptor); answer.OverallCode != tt.want {
			t.Errorf("%s: %v, want %v", tt.descriptor, answer.OverallCode, tt.want)
		}
	}
	if status, text := page(t, s.debug, "/rlconfig?format=yaml"); status != http.StatusOK ||
		!strings.Contains(text, "- key: user\n      exact: \"\"\n") {
		t.Errorf("/rlconfig is %d: %s", status, text)
	}
	out, err = run("explain", "--config", rules.files, "--domain", "d", "--descriptors", "user=")
	if err != nil || !strings.Contains(out, "d.user_") {
		t.Errorf("explain: %v: %s", err, out)
	}
}
