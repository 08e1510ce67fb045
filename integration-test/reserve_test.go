package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// A reservation of 500 that settles at 100,000 is 100,000 in the hottest subjects, in `top` and in the counters that
// envoyproxy/ratelimit has.
func TestReservationsAreCounted(t *testing.T) {
	t.Parallel()
	rules := newRuleDir(t)
	rules.put(t, "llm.yaml", "domain: llm\ndescriptors:\n"+
		"- {key: user, rate_limit: {unit: year, requests_per_unit: 150000, reserve_on_check: {estimate: 500, for: 10m}}}\n")
	s := startService(t, append(rules.env(), "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")...)
	ask := func(user string, hits, want int) {
		body := fmt.Sprintf(`{"domain":"llm","descriptors":[{"entries":[{"key":"user","value":%q}],"hitsAddend":"%d"}]}`, user, hits)
		resp, err := client.Post("http://"+s.http+"/json", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != want {
			t.Fatalf("%s for %d: %d %s, %v; want %d", user, hits, resp.StatusCode, text, err, want)
		}
	}
	ask("alex", 0, http.StatusOK)
	ask("kim", 0, http.StatusOK)
	ask("alex", 100000, http.StatusOK)
	ask("kim", 7, http.StatusOK)
	ask("alex", 60000, http.StatusOK) // A charge is never refused.
	ask("alex", 0, http.StatusTooManyRequests)
	for _, window := range []string{"minute", "hour", "day"} {
		s.until(t, "the subjects of the last "+window+" are there", func() error {
			text, err := get("http://" + s.debug + "/api/top?window=" + window)
			var top []struct {
				Subject string
				Hits    float64
			}
			if err != nil || json.Unmarshal(text, &top) != nil || len(top) != 2 || top[0].Subject != "user=alex" ||
				top[0].Hits != 160500 || top[1].Hits != 7 { // with the refused check
				return fmt.Errorf("%s, %v", text, err)
			}
			return nil
		})
	}
	if n := s.stat(t, "ratelimit.service.rate_limit.llm.user.total_hits"); n != 160007 {
		t.Errorf("total_hits is %d", n)
	}
	text, err := get("http://" + s.prometheus + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`ratelimit_hold_charged_units_total{domain="llm",rule="user"} 160007`,
		`ratelimit_holds_opened_total{domain="llm",rule="user"} 2`,
		`ratelimit_holds_closed_total{domain="llm",rule="user"} 2`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s", want)
		}
	}
}
