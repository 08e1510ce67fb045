package integration

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

// webhooks is a receiver of webhooks, which it keeps as "subject threshold".
type webhooks struct {
	*httptest.Server
	mu       sync.Mutex
	got      []string
	failures int // how many are answered 503 first
}

// receiveWebhooks starts a receiver that verifies signatures by key, in base64.
func receiveWebhooks(t *testing.T, key string, failures int) *webhooks {
	t.Helper()
	secret, err := base64.StdEncoding.DecodeString(key)
	if err != nil {
		t.Fatal(err)
	}
	w := &webhooks{failures: failures}
	w.Server = httptest.NewServer(http.HandlerFunc(func(resp http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var m struct {
			ID, Subject string
			Threshold   int
		}
		if err := errors.Join(err, json.Unmarshal(body, &m)); err != nil {
			t.Errorf("%v: %s", err, body)
		}
		mac := hmac.New(sha256.New, secret)
		fmt.Fprintf(mac, "%s.%s.%s", m.ID, req.Header.Get("webhook-timestamp"), body)
		want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		if got := req.Header.Get("webhook-signature"); got != want || req.Header.Get("webhook-id") != m.ID {
			t.Errorf("signature %s of %s, want %s", got, req.Header.Get("webhook-id"), want)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.failures > 0 {
			w.failures--
			resp.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.got = append(w.got, fmt.Sprintf("%s %d", m.Subject, m.Threshold))
	}))
	t.Cleanup(w.Close)
	return w
}

func (w *webhooks) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(slices.Values(w.got))
}

// Two replicas on one store tell once of each subject and percentage, also after a receiver has failed, and after a
// replica was killed and started again.
func TestNotifications(t *testing.T) {
	t.Parallel()
	const key = "MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI="
	redis := func(t *testing.T) []string {
		s := redistest.Start(t, redistest.Options{})
		return []string{"BACKEND_TYPE=redis", "REDIS_TIMEOUT=2s", "REDIS_URL=" + s.Addr}
	}
	for name, open := range map[string]func(t *testing.T) []string{
		"redis": redis,
		// A replica that has not counted the others yet takes half of a limit, which the others see as used.
		"leases": func(t *testing.T) []string { return append(redis(t), "COUNTING_MODE=leased", "REPLICAS=2") },
		"memcached": func(t *testing.T) []string {
			s := memcachedtest.Start(t, memcachedtest.Options{})
			return []string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + s.Addr}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := receiveWebhooks(t, key, 1)
			rules := newRuleDir(t)
			rules.put(t, "shop.yaml", `
domain: shop
notify: {at: [50, 100], url: $NOTIFY_URL_SHOP}
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 20}}
- {key: lost, rate_limit: {unit: year, requests_per_unit: 1, notify: {at: [100], url: $NOTIFY_URL_NOBODY}}}
`)
			env := append(append(rules.env(), open(t)...), "NOTIFY_SECRET="+key, "NOTIFY_URL_SHOP="+to.URL+"/a-secret-path")
			a, b := startService(t, env...), startService(t, env...)
			for i := range 12 {
				[]*service{a, b}[i%2].ask(t, "shop", "user=eve")
			}
			want := []string{"user=eve 50"}
			a.until(t, "the first percentage is told", func() error {
				if got := to.list(); !slices.Equal(got, want) {
					return fmt.Errorf("told %v", got)
				}
				return nil
			})
			b.kill(t)
			b = startService(t, env...)
			for i := range 14 {
				[]*service{a, b}[i%2].ask(t, "shop", "user=eve")
				[]*service{a, b}[i%2].ask(t, "shop", "user=bob")
			}
			want = []string{"user=bob 50", "user=eve 100", "user=eve 50"}
			a.until(t, "the others are told", func() error {
				if got := to.list(); !slices.Equal(got, want) {
					return fmt.Errorf("told %v", got)
				}
				return nil
			})
			a.ask(t, "shop", "lost=x")
			a.until(t, "the failure is counted", func() error {
				if n := a.stat(t, "ratelimit.notify.failed"); n != 1 {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
			for _, line := range []string{
				"nobody is told about subjects of 1 rule with notify, such as shop.lost at ",
				"a webhook about a subject was not delivered",
			} {
				if !strings.Contains(a.log(t), line) {
					t.Errorf("the log has no %q", line)
				}
			}
			why, _, _ := program(t, "explain", "--domain", "shop", "--descriptors", "user=eve", "--address", a.debug)
			if !strings.Contains(why, "{at: [50, 100], url: $NOTIFY_URL_SHOP}") {
				t.Error(why)
			}
			a.stop(t)
			b.stop(t)
			if got := to.list(); !slices.Equal(got, want) {
				t.Errorf("told %v", got)
			}
			for _, s := range []*service{a, b} {
				if log := s.log(t); strings.Contains(log, "a-secret-path") || strings.Contains(log, key) {
					t.Errorf("the log has a secret:\n%s", log)
				}
			}
		})
	}
}

// A secret that is none is refused at the start, without being told.
func TestNotificationSettings(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"NOTIFY_SECRET=!secret!", "NOTIFY_SECRET: it is not base64: write what `openssl rand -base64 32` prints"},
		{"NOTIFY_URL=https://user:secret@a", "NOTIFY_URL: it has a password"},
	} {
		cmd := serviceCommand(t, append(newRuleDir(t).env(), c[0])...)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), c[1]) || strings.Contains(string(out), "secret!") ||
			strings.Contains(string(out), "secret@") {
			t.Errorf("%s: %v\n%s", c[0], err, out)
		}
	}
}

// Prometheus' Alertmanager takes alerts as docs/notifications.md says.
func TestRecipeAlertmanager(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("prometheus-alertmanager")
	if err != nil {
		if path, err = exec.LookPath("alertmanager"); err != nil && os.Getenv("CI") == "true" {
			t.Fatalf("%v; it is in Debian's package prometheus-alertmanager", err)
		} else if err != nil {
			t.Skipf("%v; it is in Debian's package prometheus-alertmanager", err)
		}
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "alertmanager.yml")
	testfiles.Write(t, config, "route: {receiver: none}\nreceivers: [{name: none}]\n")
	addr := "127.0.0.1:" + freePort(t)
	start(t, "alertmanager", exec.Command(path, "--config.file", config, "--storage.path", dir, "--web.listen-address",
		addr, "--cluster.listen-address", ""))
	rules := newRuleDir(t)
	rules.put(t, "shop.yaml", "domain: shop\n"+
		"notify: {at: [100], url: 'http://"+addr+"/api/v2/alerts', format: alertmanager}\n"+
		"descriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 2}}\n")
	s := startService(t, rules.env()...)
	for range 3 {
		s.ask(t, "shop", "user=eve")
	}
	s.until(t, "the alert is there", func() error {
		text, err := get("http://" + addr + "/api/v2/alerts")
		if err != nil {
			return err
		}
		var alerts []struct {
			Labels, Annotations map[string]string
			Status              struct{ State string }
		}
		if err := json.Unmarshal(text, &alerts); err != nil {
			return err
		}
		if len(alerts) != 1 || alerts[0].Labels["subject"] != "user=eve" || alerts[0].Labels["threshold"] != "100" ||
			!strings.Contains(alerts[0].Annotations["summary"], "user=eve has used 2 of 2 (100 %) of shop.user") {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}
