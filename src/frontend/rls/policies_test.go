package rls

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// perMinute returns a charge on 10 hits per minute, of which some remain.
func perMinute(name string, remaining uint64) limiter.Charge {
	r := &rules.Rule{
		Descriptor: &rules.Descriptor{Domain: "d", FullName: "d.key_" + name}, Name: name, FullName: "d.key_" + name,
		Limit: algorithm.Limit{Max: 10, Period: time.Minute},
	}
	c := limiter.Charge{Rule: r, Algorithm: &r.Limit, Verdict: new(backend.Verdict)}
	c.Verdict.Remaining, c.Verdict.ResetAfter = remaining, 41100*time.Millisecond
	return c
}

// changed returns c after change.
func changed(c limiter.Charge, change func(*limiter.Charge)) limiter.Charge {
	if c.Rule != nil {
		r := *c.Rule
		c.Rule, c.Algorithm = &r, &r.Limit
	}
	v := *c.Verdict
	c.Verdict = &v
	change(&c)
	return c
}

// denied returns c as a limit that refuses for a time.
func denied(c limiter.Charge, wait time.Duration) limiter.Charge {
	return changed(c, func(c *limiter.Charge) {
		c.Over, c.Verdict.Over, c.Verdict.Remaining, c.Verdict.RetryAfter = true, true, 0, wait
	})
}

// answerWith returns the answer for descriptors with these charges. The first charge of a descriptor is its binding
// one.
func answerWith(descriptors ...[]limiter.Charge) *limiter.Answer {
	a := new(limiter.Answer)
	for _, charges := range descriptors {
		st := limiter.Status{Charges: charges}
		if len(charges) > 0 {
			st.BindingCharge, st.Over, st.RetryAfter = &charges[0], charges[0].Over, charges[0].Verdict.RetryAfter
		}
		a.Over, a.RetryAfter = a.Over || st.Over, max(a.RetryAfter, st.RetryAfter)
		a.Statuses = append(a.Statuses, st)
	}
	return a
}

// policyHeadersOf returns the headers of a in lines, read with protobuf's decoder.
func policyHeadersOf(t testing.TB, a *limiter.Answer) string {
	t.Helper()
	var resp pb.RateLimitResponse
	if err := proto.Unmarshal((&HeaderNames{Policies: true}).appendHeaders(nil, a), &resp); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, h := range resp.GetResponseHeadersToAdd() {
		lines = append(lines, h.GetKey()+": "+h.GetValue())
	}
	return strings.Join(lines, "\n")
}

func TestPolicyHeaders(t *testing.T) {
	t.Parallel()
	type charges = []limiter.Charge
	daily := changed(perMinute("daily", 500), func(c *limiter.Charge) {
		c.Rule.Limit.Max, c.Rule.Limit.Period, c.Verdict.ResetAfter = 1000, 24*time.Hour, 5*time.Hour
	})
	fraction := changed(perMinute("fraction", 3),
		func(c *limiter.Charge) { c.Rule.Limit.Period = 1500 * time.Millisecond })
	bucket := changed(perMinute("bucket", 12), func(c *limiter.Charge) {
		c.Rule.Limit.Kind, c.Rule.Limit.Burst = algorithm.GCRA, 14
	})
	monthly := changed(perMinute("monthly", 3),
		func(c *limiter.Charge) { c.Rule.Limit.Calendar = new(algorithm.Calendar) })
	concurrent := changed(perMinute("streams", 3), func(c *limiter.Charge) {
		c.Rule.Limit.Kind, c.Rule.Limit.Max, c.Rule.Limit.Hold = algorithm.Concurrency, 4, time.Minute
	})
	plainBucket := changed(bucket, func(c *limiter.Charge) { c.Rule.Limit.Burst = 9 })
	perHour := &algorithm.Limit{Max: 5, Period: time.Hour}
	fromRequest := changed(limiter.Charge{Algorithm: perHour, Verdict: new(backend.Verdict)},
		func(c *limiter.Charge) { c.Verdict.Remaining = 4 })
	allowed := changed(perMinute("a", 9),
		func(c *limiter.Charge) { c.Verdict.Fallback, c.Verdict.ResetAfter = backend.FallbackAllow, 0 })
	local := changed(perMinute("a", 9), func(c *limiter.Charge) { c.Verdict.Fallback = backend.FallbackLocal })
	refused := changed(denied(perMinute("a", 0), time.Second), func(c *limiter.Charge) {
		c.Verdict.Fallback, c.Verdict.ResetAfter = backend.FallbackDeny, time.Second
	})
	shadow := changed(perMinute("shadow", 0),
		func(c *limiter.Charge) { c.Verdict.Over, c.Verdict.RetryAfter = true, time.Second })
	canary := changed(perMinute("canary", 0), func(c *limiter.Charge) { c.IsCanary = true })
	huge := changed(perMinute("huge", math.MaxUint64), func(c *limiter.Charge) { c.Rule.Limit.Max = math.MaxUint64 })
	noHits := changed(denied(perMinute("zero", 0), algorithm.Never), func(c *limiter.Charge) { c.Rule.Limit.Max = 0 })
	unnamed := changed(perMinute("", 1), func(c *limiter.Charge) { c.Rule.FullName = "d.path_/login.2" })
	same := perMinute("same", 7)
	stricter := same
	stricter.Verdict.Remaining = 2
	for name, tt := range map[string]struct {
		answer *limiter.Answer
		want   string
	}{
		"no limit": {answerWith(nil, nil), ``},
		"one": {
			answerWith(charges{perMinute("a", 7)}),
			"RateLimit-Policy: \"a\";q=10;w=60\nRateLimit: \"a\";r=7;t=42",
		},
		"several of a rule": {
			answerWith(charges{perMinute("a", 7), daily}),
			"RateLimit-Policy: \"a\";q=10;w=60, \"daily\";q=1000;w=86400\nRateLimit: \"a\";r=7;t=42, \"daily\";r=500;t=18000",
		},
		"several descriptors": {
			answerWith(nil, charges{daily}, charges{perMinute("a", 7)}),
			"RateLimit-Policy: \"daily\";q=1000;w=86400, \"a\";q=10;w=60\nRateLimit: \"daily\";r=500;t=18000, \"a\";r=7;t=42",
		},
		"a rule twice": {
			answerWith(charges{same}, charges{stricter}),
			"RateLimit-Policy: \"same\";q=10;w=60\nRateLimit: \"same\";r=2;t=42",
		},
		"a rule twice, turned": {
			answerWith(charges{stricter}, charges{same}),
			"RateLimit-Policy: \"same\";q=10;w=60\nRateLimit: \"same\";r=2;t=42",
		},
		"denied": {
			answerWith(charges{denied(perMinute("a", 0), 8500*time.Millisecond)}),
			"RateLimit-Policy: \"a\";q=10;w=60\nRateLimit: \"a\";r=0;t=9\nRetry-After: 9",
		},
		// No window ends after Retry-After, so the day has no t.
		"denied beside a longer window": {
			answerWith(charges{denied(perMinute("a", 0), 8*time.Second), daily}),
			"RateLimit-Policy: \"a\";q=10;w=60, \"daily\";q=1000;w=86400\nRateLimit: \"a\";r=0;t=8, " +
				"\"daily\";r=500\nRetry-After: 8",
		},
		"never": {
			answerWith(charges{denied(perMinute("a", 0), algorithm.Never)}),
			"RateLimit-Policy: \"a\";q=10;w=60\nRateLimit: \"a\";r=0",
		},
		"a limit of 0": {
			answerWith(charges{noHits}),
			"RateLimit-Policy: \"zero\";q=0;w=60\nRateLimit: \"zero\";r=0",
		},
		"never beside another": {
			answerWith(charges{denied(perMinute("a", 3), algorithm.Never), daily}),
			"RateLimit-Policy: \"a\";q=10;w=60, \"daily\";q=1000;w=86400\nRateLimit: \"a\";r=0, \"daily\";r=500;t=18000",
		},
		"a window with a fraction": {
			answerWith(charges{fraction}),
			"RateLimit-Policy: \"fraction\";q=10;w=2\nRateLimit: \"fraction\";r=3;t=42",
		},
		"a window of the calendar": {
			answerWith(charges{monthly}),
			"RateLimit-Policy: \"monthly\";q=10\nRateLimit: \"monthly\";r=3;t=42",
		},
		"gcra with a burst": {
			answerWith(charges{bucket}),
			"RateLimit-Policy: \"bucket\";q=10;w=60;ratelimit-at-once=15\nRateLimit: \"bucket\";r=12;t=42",
		},
		"concurrency": {
			answerWith(charges{concurrent}),
			"RateLimit-Policy: \"streams\";q=4;qu=\"concurrent-requests\"\nRateLimit: \"streams\";r=3;t=42",
		},
		"gcra": {
			answerWith(charges{plainBucket}),
			"RateLimit-Policy: \"bucket\";q=10;w=60\nRateLimit: \"bucket\";r=12;t=42",
		},
		"limits of the request": {
			answerWith(charges{fromRequest}, charges{fromRequest}),
			"RateLimit-Policy: \"request.1\";q=5;w=3600, \"request.2\";q=5;w=3600\nRateLimit: \"request.1\";r=4;t=0, " +
				"\"request.2\";r=4;t=0",
		},
		"shadow": {
			answerWith(charges{shadow}),
			"RateLimit-Policy: \"shadow\";q=10;w=60\nRateLimit: \"shadow\";r=0;t=42",
		},
		"canary": {
			answerWith(charges{perMinute("a", 7), canary}),
			"RateLimit-Policy: \"a\";q=10;w=60\nRateLimit: \"a\";r=7;t=42",
		},
		"allowed without the store": {answerWith(charges{allowed}), "RateLimit-Policy: \"a\";q=10;w=60"},
		"counted without the store": {
			answerWith(charges{local}),
			"RateLimit-Policy: \"a\";q=10;w=60\nRateLimit: \"a\";r=9;t=42",
		},
		"denied without the store": {
			answerWith(charges{refused}),
			"RateLimit-Policy: \"a\";q=10;w=60\nRateLimit: \"a\";r=0;t=1\nRetry-After: 1",
		},
		"allowed beside another": {
			answerWith(charges{allowed}, charges{daily}),
			"RateLimit-Policy: \"a\";q=10;w=60, \"daily\";q=1000;w=86400\nRateLimit: \"daily\";r=500;t=18000",
		},
		"no name": {
			answerWith(charges{unnamed}),
			"RateLimit-Policy: \"path_/login.2\";q=10;w=60\nRateLimit: \"path_/login.2\";r=1;t=42",
		},
		"too large for an Integer": {
			answerWith(charges{huge}),
			"RateLimit-Policy: \"huge\";q=999999999999999;w=60\nRateLimit: \"huge\";r=999999999999999;t=42",
		},
	} {
		if got := policyHeadersOf(t, tt.answer); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, tt.want)
		}
	}
}

// However many limits apply, the headers are bounded, and have the limit that refuses.
func TestPolicyHeadersAreBounded(t *testing.T) {
	t.Parallel()
	var descriptors [][]limiter.Charge
	for i := range 50 {
		name := strings.Repeat("\n", 1000) + fmt.Sprint(i)
		c := perMinute(name, 5)
		if i == 40 {
			c = denied(c, time.Second)
		}
		descriptors = append(descriptors, []limiter.Charge{c})
	}
	got := policyHeadersOf(t, answerWith(descriptors...))
	for line := range strings.Lines(got) {
		name, value, _ := strings.Cut(line, ": ")
		if len(value) > 4096 || name != "Retry-After" && strings.Count(value, ", ") != maxPolicies-1 {
			t.Errorf("%s has %d bytes: %s", name, len(value), value)
		}
	}
	if !strings.Contains(got, "%0A40\";r=0;t=1") || !strings.Contains(got, "%0A8\";r=5") ||
		strings.Contains(got, "%0A9\";") {
		t.Error(got)
	}
}

func TestPolicyHeadersOverJSON(t *testing.T) {
	f := wireFixture(t, policyHeaderFields)
	want := []string{`"per-ip";r=1;t=41104`, `"per-ip";r=0;t=41104`, `"per-ip";r=0;t=41104`}
	for i := range want {
		w := post(f.JSONHandler(), oneIP)
		if got := w.Header().Get("RateLimit-Policy"); got != `"per-ip";q=2;w=86400` {
			t.Errorf("request %d: RateLimit-Policy: %s", i+1, got)
		}
		if got := w.Header().Get("RateLimit"); got != want[i] {
			t.Errorf("request %d: RateLimit: %s, want %s", i+1, got, want[i])
		}
		if over := w.Code == http.StatusTooManyRequests; over != (w.Header().Get("Retry-After") == "41104") {
			t.Errorf("request %d: %d with Retry-After %q", i+1, w.Code, w.Header().Get("Retry-After"))
		}
	}
}

// Every name of a rule is one String of structured fields, and short names of plain text arrive as they are.
func FuzzPolicyName(f *testing.F) {
	for _, name := range []string{
		"", "per-ip", `"`, `\`, "ü", "a\x00b", "a, b;q=1", "\x7f", strings.Repeat(`"`, 200),
		strings.Repeat("€", 50), "50%",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		a := answerWith([]limiter.Charge{perMinute(name, 7), perMinute("other", 1)})
		for line := range strings.Lines(policyHeadersOf(t, a)) {
			header, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			list, err := httpsfv.UnmarshalList([]string{value})
			if err != nil || len(list) != 2 {
				t.Fatalf("%s: %q: %d items, %v", header, value, len(list), err)
			}
			item := list[0].(httpsfv.Item)
			got, ok := item.Value.(string)
			if !ok || len(got) > 3*maxPolicyNameBytes {
				t.Fatalf("%s: the name is %q", header, item.Value)
			}
			isPlain := !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' })
			if want := name; want != "" && isPlain && len(name) <= maxPolicyNameBytes && got != want {
				t.Errorf("%s: the name %q is sent as %q", header, want, got)
			}
			for _, key := range item.Params.Names() {
				if n, _ := item.Params.Get(key); n == nil || n.(int64) < 0 {
					t.Errorf("%s: %s is %v", header, key, n)
				}
			}
		}
	})
}
