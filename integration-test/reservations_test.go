package integration

import (
	"encoding/json"
	"fmt"
	"testing"

	"ratelimit/src/operator"
	"ratelimit/testbed/redistest"
)

// The operator's figures count what was charged, and not what was reserved. The compatible counters count requests, as
// upstream does.
func TestReservationsCountAsCharged(t *testing.T) {
	for store, open := range map[string]func(*testing.T) []string{
		"memory": func(*testing.T) []string { return nil },
		"redis": func(t *testing.T) []string {
			return []string{"REDIS_URL=" + redistest.Start(t, redistest.Options{}).Addr, "REDIS_TIMEOUT=5s"}
		},
	} {
		t.Run(store, func(t *testing.T) {
			rules := newRuleDir(t)
			rules.put(t, "d.yaml", "domain: d\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 1000, "+
				"hold: 1h, hold_id: id}}\n")
			u := startWith(t, rules, append(open(t), "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")...)
			for _, s := range []struct{ ask, want string }{
				{"user=al, id=1 [hits 500]", "OK 500/1000 YEAR"},
				{"user=al, id=1 [hits 500]", "OK 500/1000 YEAR"},
				{"user=bo, id=2 [hits 500]", "OK 500/1000 YEAR"},
				{"user=al, id=1, hold=settle [hits 20]", "OK 980/1000 YEAR"},
				{"user=bo, id=2, hold=settle [hits 900]", "OK 100/1000 YEAR"},
				{"user=cy, id=3 [hits 300]", "OK 700/1000 YEAR"},
				{"user=cy, id=3, hold=release", "OK 1000/1000 YEAR"},
			} {
				if got := answerText(u.send(t, "json", "d", step{ask: s.ask}).answer); got != s.want {
					t.Errorf("%s: %q, want %q", s.ask, got, s.want)
				}
			}
			soon(t, "the hottest subjects are counted", func() error {
				var top []operator.Subject
				if err := json.Unmarshal([]byte(u.page(t, "/api/top")), &top); err != nil {
					return err
				}
				got := ""
				for _, s := range top {
					got += fmt.Sprintf("%s %d ", s.Subject, s.Hits)
				}
				if want := "user=bo 900 user=al 20 "; got != want {
					return fmt.Errorf("%q, want %q", got, want)
				}
				return nil
			})
			var rates operator.Rates
			if err := json.Unmarshal([]byte(u.page(t, "/api/rates")), &rates); err != nil || len(rates.Rules) != 1 ||
				*rates.Rules[0].Holds != (operator.Holds{Charged: 920}) {
				t.Errorf("rates: %+v, %v", rates.Rules, err)
			}
			values, _ := u.scrape(t, "/metrics")
			if got := values[`ratelimit_hold_charged_units_total{domain="d",rule="user"}`]; got != 920 {
				t.Errorf("%v units were charged, want 920", got)
			}
			if got := u.stats(t)[ruleStats+"d.user.total_hits"]; got != 500+500+500+300 {
				t.Errorf("total_hits %d", got)
			}
		})
	}
}

// A hold that nothing settles is charged when it expires, and so it is in the operator's figures, unless the limit
// releases it.
func TestExpiredReservationsCountAsCharged(t *testing.T) {
	t.Parallel()
	for store, open := range map[string]func(*testing.T) []string{
		"memory": func(*testing.T) []string { return nil },
		"redis": func(t *testing.T) []string {
			return []string{"REDIS_URL=" + redistest.Start(t, redistest.Options{}).Addr, "REDIS_TIMEOUT=5s"}
		},
	} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			rules := newRuleDir(t)
			rules.put(t, "d.yaml", `domain: d
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 1000, hold: 50ms, hold_id: id}}
- {key: guest, rate_limit: {unit: year, requests_per_unit: 1000, hold: 50ms, hold_id: id, unsettled: release}}
`)
			u := startWith(t, rules, append(open(t), "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")...)
			for _, key := range []string{"user", "guest"} {
				u.send(t, "json", "d", step{ask: key + "=al, id=1 [hits 500]"})
				soon(t, "the hold has expired", func() error {
					u.send(t, "json", "d", step{ask: key + "=al [hits 0]"})
					values, _ := u.scrape(t, "/metrics")
					if got := values[`ratelimit_holds_expired_total{domain="d",rule="`+key+`"}`]; got != 1 {
						return fmt.Errorf("%v holds have expired", got)
					}
					return nil
				})
			}
			values, _ := u.scrape(t, "/metrics")
			for key, want := range map[string]float64{"user": 500, "guest": 0} {
				if got := values[`ratelimit_hold_charged_units_total{domain="d",rule="`+key+`"}`]; got != want {
					t.Errorf("%v units of %s were charged, want %v", got, key, want)
				}
			}
			soon(t, "the hottest subject has the units", func() error {
				var top []operator.Subject
				if err := json.Unmarshal([]byte(u.page(t, "/api/top")), &top); err != nil {
					return err
				}
				if len(top) != 1 || top[0].Subject != "user=al" || top[0].Hits != 500 {
					return fmt.Errorf("%+v", top)
				}
				return nil
			})
		})
	}
}
