package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

const upstreamAccountingTen = `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 10}}
`

var upstreamAccountingCases = []sentence{
	{
		name:  "within_limit counts all that passes, near_limit what of it is above the ratio",
		rules: upstreamAccountingTen,
		steps: []step{
			{ask: "a [hits 7]", want: "OK 3/10 YEAR", counts: "a: total_hits 7, within_limit 7"},
			{ask: "a [hits 2]", want: "OK 1/10 YEAR", counts: "a: total_hits 2, within_limit 2, near_limit 1"},
			{ask: "a", want: "OK 0/10 YEAR", counts: "a: total_hits 1, within_limit 1, near_limit 1"},
			{ask: "a=1 [hits 8]", want: "OK 2/10 YEAR", counts: "a: total_hits 8, within_limit 8"},
			{ask: "a=1 [hits 2]", want: "OK 0/10 YEAR", counts: "a: total_hits 2, within_limit 2, near_limit 2"},
			{ask: "a=2 [hits 10]", want: "OK 0/10 YEAR", counts: "a: total_hits 10, within_limit 10, near_limit 2"},
		},
	},
	{
		name:  "0 to 25: over 15, near 2; within_limit gets nothing, not even for the part below the limit",
		rules: upstreamAccountingTen,
		steps: []step{{
			ask: "a [hits 25]", want: "OVER_LIMIT 0/10 YEAR",
			counts: "a: total_hits 25, over_limit 15, near_limit 2",
		}},
	},
	{
		name:  "8 to 12: over 2, near 2",
		rules: upstreamAccountingTen,
		steps: []step{
			{ask: "a [hits 8]", want: "OK 2/10 YEAR"},
			{ask: "a [hits 4]", want: "OVER_LIMIT 0/10 YEAR", counts: "a: total_hits 4, over_limit 2, near_limit 2"},
		},
	},
	{
		name:  "5 to 12: over 2, near 2",
		rules: upstreamAccountingTen,
		steps: []step{
			{ask: "a [hits 5]", want: "OK 5/10 YEAR"},
			{ask: "a [hits 7]", want: "OVER_LIMIT 0/10 YEAR", counts: "a: total_hits 7, over_limit 2, near_limit 2"},
		},
	},
	{
		name:  "9 to 12: over 2, near 1; from the limit on all is over",
		rules: upstreamAccountingTen,
		steps: []step{
			{ask: "a [hits 9]", want: "OK 1/10 YEAR"},
			{ask: "a [hits 3]", want: "OVER_LIMIT 0/10 YEAR", counts: "a: total_hits 3, over_limit 2, near_limit 1"},
			{ask: "a [hits 3]", want: "OVER_LIMIT 0/10 YEAR", counts: "a: total_hits 3, over_limit 3"},
		},
	},
	{
		name: "with a limit of 1 the single allowed hit is near, with 0 all is over",
		rules: `
descriptors:
- {key: one, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: none, rate_limit: {unit: year, requests_per_unit: 0}}
`,
		steps: []step{
			{
				ask: "one + none [hits 2]", want: "OK 0/1 YEAR + OVER_LIMIT 0/0 YEAR",
				counts: "one: total_hits 1, within_limit 1, near_limit 1; none: total_hits 2, over_limit 2",
			},
			{ask: "one [hits 0] + none [hits 0]", want: "OK 0/1 YEAR + OVER_LIMIT 0/0 YEAR", counts: "none"},
		},
	},
	{
		name: "differs: with a limit of 0 a look is over before the first charge, too",
		rules: `
descriptors:
- {key: none, rate_limit: {unit: year, requests_per_unit: 0}}
`,
		steps: []step{
			{ask: "none [hits 0]", want: "OVER_LIMIT 0/0 YEAR", counts: "none"},
		},
	},
	{
		name: "shadow_mode counts what is over",
		rules: `
descriptors:
- {key: s, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 10}}
`,
		steps: []step{
			{ask: "s [hits 9]", want: "OK 1/10 YEAR", counts: "s: total_hits 9, within_limit 9, near_limit 1"},
			{ask: "s [hits 4]", want: "OK 0/10 YEAR", counts: "s: total_hits 4, over_limit 3, near_limit 1, shadow_mode 3"},
			{ask: "s [hits 4]", want: "OK 0/10 YEAR", counts: "s: total_hits 4, over_limit 4, shadow_mode 4"},
		},
	},
	{
		name:  "a descriptor that is twice in a request counts twice",
		rules: upstreamAccountingTen,
		steps: []step{{
			ask: "a [hits 8] + a [hits 4]", want: "OK 2/10 YEAR + OVER_LIMIT 0/10 YEAR",
			counts: "a: total_hits 12, within_limit 8, over_limit 2, near_limit 2",
		}},
	},
	{
		name: "the near ratio is of float32", // in float64 4194304 were near
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 5242881}}
`,
		steps: []step{
			{ask: "a [hits 4194305]", want: "OK 1048576/5242881 YEAR", counts: "a: total_hits 4194305, within_limit 4194305"},
			{ask: "a", want: "OK 1048575/5242881 YEAR", counts: "a: total_hits 1, within_limit 1, near_limit 1"},
		},
	},
}

// How hits are split into within, near and over. With ten a year a hit is near
// the limit from the ninth on.
func TestUpstreamAccounting(t *testing.T) {
	prove(t, nil, upstreamAccountingCases)
	prove(t, []string{"NEAR_LIMIT_RATIO=0.7"}, []sentence{{
		name: "NEAR_LIMIT_RATIO, in float32", // in float64, and in float32 widened to it, 63 were near
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 90}}
`,
		steps: []step{
			{ask: "a [hits 63]", want: "OK 27/90 YEAR", counts: "a: total_hits 63, within_limit 63"},
			{ask: "a [hits 2]", want: "OK 25/90 YEAR", counts: "a: total_hits 2, within_limit 2, near_limit 2"},
		},
	}})
	prove(t, []string{"NEAR_LIMIT_RATIO=0"}, []sentence{{
		name: "NEAR_LIMIT_RATIO=0: every admitted hit is near",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 3}}
`,
		steps: []step{
			{ask: "a", want: "OK 2/3 YEAR", counts: "a: total_hits 1, within_limit 1, near_limit 1"},
			{ask: "a [hits 3]", want: "OVER_LIMIT 0/3 YEAR", counts: "a: total_hits 3, near_limit 2, over_limit 1"},
		},
	}})
}

var upstreamStatKeysCases = []sentence{
	{
		name: "the composites of the levels joined by dots, as written in the configuration",
		rules: `
descriptors:
- key: parent
  value: p
  descriptors:
  - key: child
    descriptors:
    - {key: w, value: x*z, rate_limit: {unit: year, requests_per_unit: 9}}
`,
		steps: []step{{
			ask: "parent=p, child=c, w=xyz", want: "OK 8/9 YEAR",
			counts: "parent_p.child.w_x*z: total_hits 1, within_limit 1",
		}},
	},
	{
		name: ": and | become _, an IPv4 address gets underscores, other dots, spaces, *, / and = stay",
		rules: `
descriptors:
- {key: "a:b|c", value: "d:e", rate_limit: {unit: year, requests_per_unit: 9}}
- {key: ip, value: 10.20.30.40/8, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: v, value: 1.2.3, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: w, value: "x y=*/z", rate_limit: {unit: year, requests_per_unit: 9}}
- {key: r, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
`,
		steps: []step{
			{ask: "a:b|c=d:e", want: "OK 8/9 YEAR", counts: "a_b_c_d_e: total_hits 1, within_limit 1"},
			{ask: "ip=10.20.30.40/8", want: "OK 8/9 YEAR", counts: "ip_10_20_30_40/8: total_hits 1, within_limit 1"},
			{ask: "v=1.2.3", want: "OK 8/9 YEAR", counts: "v_1.2.3: total_hits 1, within_limit 1"},
			{ask: "w=x y=1/z", want: "OK 8/9 YEAR", counts: "w_x y=*/z: total_hits 1, within_limit 1"},
			{ask: "r=10.0.0.1:80|x", want: "OK 8/9 YEAR", counts: "r_10_0_0_1_80_x: total_hits 1, within_limit 1"},
			{ask: "r=::1 v1.2", want: "OK 8/9 YEAR", counts: "r___1 v1.2: total_hits 1, within_limit 1"},
			{ask: "r=1.2.3.4.5", want: "OK 8/9 YEAR", counts: "r_1_2_3_4.5: total_hits 1, within_limit 1"},
		},
	},
	{
		name: "detailed_metric: every level as key_value with request values, an empty value leaves a trailing _",
		rules: `
descriptors:
- key: a
  descriptors:
  - {key: b, value: x*, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: c, detailed_metric: true, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
`,
		steps: []step{
			{ask: "a=1, b=xy", want: "OK 8/9 YEAR", counts: "a_1.b_xy: total_hits 1, within_limit 1"},
			{ask: "a=2, b=xz", want: "OK 8/9 YEAR", counts: "a_2.b_xz: total_hits 1, within_limit 1"},
			// detailed_metric wins over value_to_metric
			{ask: "a=, c=", want: "OK 8/9 YEAR", counts: "a_.c_: total_hits 1, within_limit 1"},
			{
				ask: "a=2, b=xz [hits 9]", want: "OVER_LIMIT 0/9 YEAR",
				counts: "a_2.b_xz: total_hits 9, over_limit 1, near_limit 2",
			},
		},
	},
	{
		name: "detailed_metric counts on the matched, last descriptor",
		rules: `
descriptors:
- key: a
  detailed_metric: true
  rate_limit: {unit: year, requests_per_unit: 9}
  descriptors:
  - {key: b, rate_limit: {unit: year, requests_per_unit: 9}}
`,
		steps: []step{
			{ask: "a=1, b=2", want: "OK 8/9 YEAR", counts: "a.b: total_hits 1, within_limit 1"},
			{ask: "a=1", want: "OK 8/9 YEAR", counts: "a_1: total_hits 1, within_limit 1"},
		},
	},
	{
		name: "detailed_metric: levels matched through share_threshold show the pattern, and then empty values leave no _",
		rules: `
descriptors:
- key: a
  value: x*
  share_threshold: true
  descriptors:
  - {key: b, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
`,
		steps: []step{
			{ask: "a=xy, b=1", want: "OK 8/9 YEAR", counts: "a_x*.b_1: total_hits 1, within_limit 1"},
			{ask: "a=xz, b=", want: "OK 8/9 YEAR", counts: "a_x*.b: total_hits 1, within_limit 1"},
		},
	},
	{
		name: "value_to_metric: a level matched by wildcard or by key alone shows the request's value",
		rules: `
descriptors:
- key: a
  value_to_metric: true
  descriptors:
  - key: b
    value: x*
    value_to_metric: true
    descriptors:
    - key: c
      descriptors:
      - {key: d, value: "*", rate_limit: {unit: year, requests_per_unit: 9}}
`,
		steps: []step{
			{ask: "a=1, b=xy, c=3, d=4", want: "OK 8/9 YEAR", counts: "a_1.b_xy.c.d_*: total_hits 1, within_limit 1"},
			// unless it is empty
			{ask: "a=, b=x, c=3, d=4", want: "OK 8/9 YEAR", counts: "a.b_x.c.d_*: total_hits 1, within_limit 1"},
		},
	},
	{
		name: "value_to_metric: not with share_threshold, which shows the pattern",
		rules: `
descriptors:
- {key: a, value: x*, value_to_metric: true, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: b, value: exact, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
`,
		steps: []step{{
			ask: "a=x1 + a=x2 + b=exact", want: "OK 8/9 YEAR + OK 7/9 YEAR + OK 8/9 YEAR",
			counts: "a_x*: total_hits 2, within_limit 2; b_exact: total_hits 1, within_limit 1",
		}},
	},
	{
		name: "a wildcard in the key comes out as the entry's key and the whole pattern",
		rules: `
descriptors:
- {key: star*, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: p*h, value: q, rate_limit: {unit: year, requests_per_unit: 9}}
`,
		steps: []step{
			{ask: "starlight=x", want: "OK 8/9 YEAR", counts: "starlight_star*: total_hits 1, within_limit 1"},
			{ask: "path=q", want: "OK 8/9 YEAR", counts: "path_p*h_q: total_hits 1, within_limit 1"},
		},
	},
}

// What the counters of a rule are called.
func TestUpstreamStatKeys(t *testing.T) {
	prove(t, nil, upstreamStatKeysCases)
}

// Counters of calls, and the pages of the debug port.
func TestUpstreamDebugPort(t *testing.T) {
	u := startUpstream(t, nil, []sentence{{rules: `
descriptors:
- {key: z, value: 1, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 7}}
- key: b
  rate_limit: {unlimited: true, requests_per_unit: 3}
  descriptors:
  - {key: c, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: none}
`}})
	t.Run("total_requests counts gRPC unary calls only: ShouldRateLimit, Check; not /json, not unknown methods",
		func(t *testing.T) { countsUnaryCalls(t, u) })
	t.Run("differs: /stats shows the real counters, sorted, zeros of configured rules included",
		func(t *testing.T) { showsRealCounters(t, u) })
	t.Run("differs: /rlconfig is ordered; one line per rule with a limit", func(t *testing.T) {
		want := []string{
			"grpc0.z_1: unit=DAY requests_per_unit=7, shadow_mode: true, quota_mode: false",
			"grpc0.b: unlimited, shadow_mode: false, quota_mode: false",
			"grpc0.b.c: unit=YEAR requests_per_unit=9, shadow_mode: false, quota_mode: true",
			"json0.z_1: unit=DAY requests_per_unit=7, shadow_mode: true, quota_mode: false",
			"json0.b: unlimited, shadow_mode: false, quota_mode: false",
			"json0.b.c: unit=YEAR requests_per_unit=9, shadow_mode: false, quota_mode: true",
		}
		if got := strings.Split(strings.TrimSpace(u.page(t, "/rlconfig")), "\n"); !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
	t.Run("/: 200, sorted path: help lines; differs: unknown paths are 404", func(t *testing.T) {
		index := u.page(t, "/")
		lines := strings.Split(strings.TrimSpace(index), "\n")
		if !slices.IsSorted(lines) || !strings.Contains(index, "/rlconfig: ") || !strings.Contains(index, "/stats: ") {
			t.Errorf("got\n%s", index)
		}
		if _, err := get("http://" + u.debug + "/no/such/page"); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("an unknown path: %v", err)
		}
	})
}

func showsRealCounters(t *testing.T, u *upstream) {
	t.Helper()
	stats := u.stats(t)
	for _, name := range []string{
		"total_hits", "over_limit", "near_limit", "over_limit_with_local_cache", "within_limit",
		"shadow_mode",
	} {
		if value, ok := stats[ruleStats+"grpc0.z_1."+name]; !ok || value != 0 {
			t.Errorf("%s is %d, %t", name, value, ok)
		}
	}
	lines := strings.Split(strings.TrimSuffix(u.page(t, "/stats"), "\n"), "\n")
	if !slices.IsSortedFunc(lines, func(a, b string) int {
		return strings.Compare(a[:strings.LastIndex(a, ": ")], b[:strings.LastIndex(b, ": ")])
	}) {
		t.Errorf("not sorted:\n%s", strings.Join(lines, "\n"))
	}
	var object map[string]int64
	if err := json.Unmarshal([]byte(u.page(t, "/stats?format=json")), &object); err != nil {
		t.Fatal(err)
	}
	if got := object[ruleStats+"grpc0.b.c.total_hits"]; got != 1 {
		t.Errorf("as JSON total_hits is %d, want 1", got)
	}
}

func countsUnaryCalls(t *testing.T, u *upstream) {
	t.Helper()
	before := u.stats(t)
	u.runStep(t, "grpc", "grpc0", 1, step{ask: "b=1, c=1", want: "OK 8/9 YEAR"})
	u.runStep(t, "grpc", "grpc0", 2, step{ask: "", fails: codes.InvalidArgument})
	u.runStep(t, "json", "json0", 3, step{ask: "b=1, c=1", want: "OK 8/9 YEAR"})
	if _, err := healthpb.NewHealthClient(u.conn).Check(t.Context(),
		&healthpb.HealthCheckRequest{Service: "ratelimit"}); err != nil {
		t.Error(err)
	}
	err := u.conn.Invoke(t.Context(), "/envoy.service.ratelimit.v3.RateLimitService/Unknown",
		new(healthpb.HealthCheckRequest), new(healthpb.HealthCheckResponse))
	if status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	want := map[string]int64{"ShouldRateLimit.total_requests": 2, "Check.total_requests": 1}
	soon(t, "the calls are counted", func() error {
		got := moved(before, u.stats(t), "ratelimit_server.")
		maps.DeleteFunc(got, func(name string, _ int64) bool { return strings.Contains(name, "response_time") })
		if !maps.Equal(got, want) {
			return fmt.Errorf("counters moved %v, want %v", got, want)
		}
		return nil
	})
}

// Clients choose values, and must not be able to choose how much is kept.
func TestUpstreamSeriesCap(t *testing.T) {
	t.Parallel()
	const most, sent = 20, 40
	u := startUpstream(t, []string{fmt.Sprintf("STATS_MAX_SERIES=%d", most)}, []sentence{{rules: `
descriptors:
- {key: a, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: b, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}
`}})
	t.Run("differs: at most STATS_MAX_SERIES client-chosen series", func(t *testing.T) {
		for i := range sent {
			ask := fmt.Sprintf("a=%d + b=%d + c=%d [limit 9/YEAR]", i, i, i)
			u.runStep(t, "grpc", "grpc0", i+1, step{ask: ask, want: "OK 8/9 YEAR + OK 8/9 YEAR + OK 8/9 YEAR"})
			u.runStep(t, "grpc", fmt.Sprintf("unknown%d", i), i+1, step{ask: "a", want: "OK"})
		}
		u.until(t, "those that made room have gone", func() error {
			series, unknown := 0, 0 // the first ten domains without rules have their own; all others share one
			seen := map[string]bool{ruleStats + "grpc0.a": true, ruleStats + "grpc0.b": true}
			for name := range u.stats(t) {
				key := name[:max(0, strings.LastIndex(name, "."))]
				if seen[key] {
					continue
				}
				seen[key] = true
				switch {
				case strings.HasPrefix(key, ruleStats+"unknown"):
					unknown++
				case strings.HasPrefix(key, ruleStats+"grpc0."):
					series++
				}
			}
			if unknown != 10 || series > most || series == 0 {
				return fmt.Errorf("%d series of unknown domains, want 10; %d after %d values of three kinds, want up to %d",
					unknown, series, sent, most)
			}
			return nil
		})
		u.runStep(t, "grpc", "grpc0", sent+1,
			step{ask: "a=last", want: "OK 8/9 YEAR", counts: "a_last: total_hits 1, within_limit 1"})
	})
}

// page returns a page of the debug port.
func (u *upstream) page(t *testing.T, path string) string {
	t.Helper()
	text, err := get("http://" + u.debug + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
