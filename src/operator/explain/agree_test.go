package explain_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/explain"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

// tap notes what goes through it to a store.
type tap struct {
	backend.Backend
	hits []string
}

func (s *tap) Take(ctx context.Context, b *backend.Batch) error {
	s.hits = s.hits[:0]
	for i := range b.Hits {
		h := &b.Hits[i]
		s.hits = append(s.hits, fmt.Sprintf("%v %d %s by %v", h.Op, h.Amount, h.Key, h.Limit.Kind))
	}
	return s.Backend.Take(ctx, b)
}

// everything is a domain in which most of what rules can say is said.
const everything = `
domain: d
descriptors:
  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 2, name: per-ip}}
  - {key: ip, value: 10.*, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: ip, value: "10.0", rate_limit: {unlimited: true}}
  - {key: vip, rate_limit: {algorithm: gcra, unit: hour, requests_per_unit: 4, burst: 1, replaces: [{name: per-ip}, {name: fast}]}}
  - {key: gold, quota_mode: true, rate_limit: {algorithm: sliding_window, unit: minute, requests_per_unit: 2, min_interval: 1s}}
  - {key: slow, quota_mode: true, share_threshold: true, value: "a*", rate_limit: {algorithm: sliding_window_counter, unit: minute, requests_per_unit: 2}}
  - key: user
    charge: path
    rate_limits: [{unit: second, requests_per_unit: 1, name: fast}, {algorithm: first_hit_window, unit: minute, requests_per_unit: 3}]
    descriptors:
      - {key: path, rate_limit: {unit: hour, requests_per_unit: 2}}
      - key: path
        value: /pay
        on_reject: none
        rate_limit: {algorithm: gcra, unit: minute, requests_per_unit: 3, min_interval: 1ms}
  - key: empty
`

// everythingOrdered is that of an ordered list, everyLevel of a tree of limits.
const everythingOrdered = `
domain: o
rules:
  - {match: {ip: "*", gold: "*"}, per: [ip], quota_mode: true, rate_limit: {algorithm: sliding_window, unit: minute, requests_per_unit: 2, min_interval: 1s}}
  - {match: {ip: "*"}, per: [ip], shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1, name: canary}}
  - {match: {ip: "10.*"}, shadow_mode: true, rate_limits: [{unit: second, requests_per_unit: 1}, {unit: hour, requests_per_unit: 2}]}
  - {match: {ip: "10.0"}, rate_limit: {unlimited: true}}
  - {match: {ip: "10.*", path: /pay}, on_reject: none, rate_limits: [{algorithm: gcra, unit: minute, requests_per_unit: 2}, {unit: hour, requests_per_unit: 3}]}
  - {match: {ip: "*"}, per: [ip, user], rate_limit: {algorithm: first_hit_window, unit: minute, requests_per_unit: 2, name: per-ip}}
  - {match: {vip: "*"}, rate_limit: {unit: hour, requests_per_unit: 4, replaces: [{name: per-ip}, {name: canary}]}}
  - {match: {banned: "yes"}, rate_limit: {unit: second, requests_per_unit: 0}}
  - {match: {trial: "*"}, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
`

const everyLevel = `
schema:
  user: {children: {"*": {limits: [2, 1, 60], children: {trade: {limits: [0, 1, 30]}, "*": {children: {now: {limits: [1, 1, 10]}}}}}, eve: {limits: [0, 1, 5]}}}
  "*": {limits: [1, 1, 60]}
`

// FuzzAgrees compares the explanation of each request with its decision: the same charges
// in the same order, the keys and amounts sent to the store, and the answer.
func FuzzAgrees(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"), uint8(0))
	f.Add([]byte("\x10\x10\x10\x31\x31\x31\x84\x84\x84\x4a\x4b\x4a\x4b"), uint8(1))
	f.Add([]byte("abcdefghijklmnopqrstuvwxyz0123456789"), uint8(2))
	f.Add([]byte("\x08\x18\x28\x38\x48\x58\x68\x78\x88\x98\xa8\xb8\xc8"), uint8(4))
	f.Add([]byte("\xff\x80\x7f\xc0\x3f\x20\x9a\xea\x6c\x4d"), uint8(3))
	for kind := range uint8(3) {
		f.Add([]byte("\x00\x10\x21\x32\x43\x54\x65\x76\x07\x18\x29\x3a\x4b\x5c\x6d\x7e\x0f\x00\x21\x02"), kind<<4)
		f.Add([]byte("\x00\x00\x00\x21\x21\x21\x02\x23\x04\x24\x05\x0a\x8b\x0b\x0b"), kind<<4|4)
	}
	domains := []struct {
		name        string
		descriptors []string
	}{
		{"d", []string{
			"ip=1", "ip=10.1", "ip=10.0", "vip=x", "gold=1", "slow=a1", "slow=a2", "slow=b",
			"user=u", "user=u, path=/x", "user=u, path=/pay", "user=v, path=/pay, id=7", "empty=1", "nobody=1", "ip=1 limit=2",
			"ip=1 refund",
		}},
		{"o", []string{
			"ip=1", "ip=10.1", "ip=10.0", "vip=x", "gold=1, ip=1", "ip=10.1, path=/pay", "path=/pay, ip=10.2", "ip=",
			"user=u, ip=1", "trial=x", "trial=x, ip=1, ip=2", "banned=yes", "banned=no", "nobody=1", "ip=1 limit=2",
			"ip=1 refund",
		}},
		{"t", []string{
			"user=alex", "user=alex, trade=", "user=, alex=trade", "user=alex, trade=x", "user=alex, look=now",
			"user=alex, look=later", "user=eve", "user=eve, trade=",
			"user=", "ip=1", "ip=, 2=", "user=bob, now=", "user=*", "user=bob, trade=now", "user=alex limit=2",
			"user=alex refund",
		}},
	}
	set := limitertest.Load(f, []filerules.File{
		{Name: "a.yaml", Data: []byte(everything)},
		{Name: "o.yaml", Data: []byte(everythingOrdered)},
		{Name: "t.yaml", Data: []byte(everyLevel)},
	})
	f.Fuzz(func(t *testing.T, data []byte, modes uint8) {
		if len(data) > 100 {
			return
		}
		store := limitertest.Store(t, memory.Config{MaxBytes: memory.MinBytes})
		seen := &tap{Backend: store}
		l := limiter.New(limiter.Config{
			Backend: seen, ShadowMode: modes&1 > 0, QuotaMode: modes&2 > 0, ChargeAllOrNothing: modes&4 > 0,
			EscapeKeys: modes&8 > 0, KeyPrefix: "p:",
		})
		l.UseRules(set)
		domain := domains[int(modes>>4)%len(domains)]
		descriptors := domain.descriptors
		now := time.Date(2026, 1, 1, 0, 0, 10, 0, time.UTC)
		for i, b := range data {
			now = now.Add([]time.Duration{0, time.Second, 9 * time.Second, time.Minute}[b>>6])
			ask := descriptors[b&15]
			if b>>4&1 > 0 && b&15 < 14 {
				ask += fmt.Sprintf(" hits=%d", i%4)
			}
			if b>>5&1 > 0 {
				ask += " + " + descriptors[(int(b)+i)&15]
			}
			req := parse(t, domain.name+": "+ask)
			req.Now = now
			report := look(t, l, req, true)
			var a limiter.Answer
			seen.hits = nil
			if err := l.Check(t.Context(), req, &a); err != nil {
				t.Fatal(err)
			}
			agree(t, ask, report, &a, seen.hits)
		}
	})
}

// agree compares an explanation with what came of the request. Only where hits
// of the request share a counter may it have been treated more kindly: the
// second one is explained as if the first had been charged, even if it was not.
func agree(t *testing.T, ask string, report *explain.Report, a *limiter.Answer, hits []string) {
	t.Helper()
	var explained, counters []string
	shared := false
	for _, d := range report.Descriptors {
		for _, c := range d.Charges {
			if c.State == nil {
				continue
			}
			explained = append(explained, fmt.Sprintf("%s %d %s by %s", c.Operation, c.Amount, c.Key, c.Algorithm))
			shared = shared || slices.Contains(counters, c.Key)
			counters = append(counters, c.Key)
		}
	}
	if !slices.Equal(explained, hits) {
		t.Fatalf("%s: explained as\n%q\nbut charged is\n%q", ask, explained, hits)
	}
	refused := a.Over || a.Shadowed
	if would := report.Decision.Code == "OVER_LIMIT" || report.Decision.Shadowed; refused && !would ||
		would != refused && !shared {
		t.Fatalf("%s: explained as %+v, but over is %t, shadowed %t", ask, *report.Decision, a.Over, a.Shadowed)
	}
	for i, d := range report.Descriptors {
		st := &a.Statuses[i]
		if d.Quota != st.InQuotaMode ||
			(d.Rule == "") != (d.Outcome == explain.OutcomeUnmatched ||
				st.BindingCharge != nil && st.BindingCharge.Rule == nil) {
			t.Fatalf("%s, descriptor %d: explained as %+v, but it was %+v", ask, i, d, *st)
		}
		if shared {
			continue
		}
		if over := d.Status.Code == "OVER_LIMIT"; over != st.Over {
			t.Fatalf("%s, descriptor %d: explained as over %t, but it was %t", ask, i, over, st.Over)
		}
		if bound := st.BindingCharge; (bound == nil) != (d.Status.Binding == nil) {
			t.Fatalf("%s, descriptor %d: explained with %+v, but it was %+v", ask, i, *d.Status, *st)
		}
		now := 0
		for _, c := range d.Charges {
			if c.State == nil {
				continue
			}
			if v := st.Charges[now].Verdict; v.Over != c.State.Over || v.Before != *c.State.Before {
				t.Fatalf("%s, descriptor %d, %s: explained with %+v, but it was %+v", ask, i, c.Key, *c.State, v)
			}
			now++
		}
	}
}

// While rules are replaced, each explanation uses one set for the walk, the limit and the
// counter.
func TestExplainsByOneSet(t *testing.T) {
	texts := []string{
		"domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1000000}}\n",
		"domain: d\ndescriptors:\n- key: a\n  value: \"*\"\n  charge: path\n  rate_limit: {unit: hour, requests_per_unit: " +
			"2000000}\n  descriptors:\n  - {key: b, rate_limit: {unit: day, requests_per_unit: 3000000}}\n",
		"domain: e\n",
	}
	const ask = "d: a=1, b=2 + a=1"
	sets, want := make([]*rules.Set, len(texts)), make([]string, len(texts))
	for i, text := range texts {
		l := start(t, limiter.Config{}, text)
		sets[i], want[i] = l.Rules(), look(t, l, parse(t, ask), false).Text()
	}
	l := start(t, limiter.Config{}, texts[0])
	stop, reloads := make(chan struct{}), sync.WaitGroup{}
	reloads.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				l.UseRules(sets[i%len(sets)])
			}
		}
	})
	var askers sync.WaitGroup
	for range 4 {
		req := parse(t, ask)
		askers.Go(func() {
			for i := range 500 {
				var a limiter.Answer
				if i%5 == 0 {
					if err := l.Check(t.Context(), req, &a); err != nil {
						t.Error(err)
					}
				}
				if err := l.DryRun(t.Context(), req, &a); err != nil {
					t.Error(err)
					return
				}
				if got := newReport(t, req, &a, false).Text(); !slices.Contains(want, got) {
					t.Errorf("explained by no set there was:\n%s", got)
					return
				}
				got := newReport(t, req, &a, true)
				for _, d := range got.Descriptors {
					for _, c := range d.Charges {
						if c.State == nil || *c.State.Before+*c.State.Remaining != c.Limit {
							t.Errorf("%s: a limit of %d, and %+v", c.Rule, c.Limit, c.State)
							return
						}
					}
				}
			}
		})
	}
	askers.Wait()
	close(stop)
	reloads.Wait()
}
