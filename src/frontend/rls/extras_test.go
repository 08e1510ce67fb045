package rls

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// asked returns the status of a limit. A negative remaining is over, with that many
// seconds to wait; -1000 can never pass.
func asked(requests uint64, remaining int, quota bool) limiter.Status {
	c := limiter.Charge{Limit: rules.Rate{Requests: requests, Unit: rules.UnitHour}, Verdict: new(backend.Verdict)}
	st := limiter.Status{InQuotaMode: quota, ResetAfter: time.Duration(requests)*time.Second - time.Millisecond}
	if remaining >= 0 {
		c.Verdict.Remaining = uint64(remaining)
	} else {
		st.Over, c.Over, c.Verdict.Over = true, true, true
		st.RetryAfter = time.Duration(-remaining)*time.Second - time.Millisecond
		if remaining == -1000 {
			st.RetryAfter = algorithm.Never
		}
	}
	st.Charges = []limiter.Charge{c}
	st.BindingCharge = &st.Charges[0]
	return st
}

func TestHeaders(t *testing.T) {
	none := limiter.Status{}
	tests := []struct {
		name     string
		over     bool
		wait     time.Duration // algorithm.Never: it can never pass
		statuses []limiter.Status
		want     string
	}{
		{"no limit", false, 0, []limiter.Status{none, none}, ""},
		{"one", false, 0, []limiter.Status{none, asked(10, 3, false)}, "L=10 R=3 S=10"},
		{
			"the fewest remaining", false, 0,
			[]limiter.Status{asked(10, 3, false), asked(20, 2, false), asked(30, 5, false)},
			"L=20 R=2 S=20",
		},
		{"the first of equals", false, 0, []limiter.Status{asked(10, 3, false), asked(20, 3, false)}, "L=10 R=3 S=10"},
		{
			"the last that refuses", true, 7*time.Second - time.Millisecond,
			[]limiter.Status{asked(10, -7, false), asked(20, -5, false), asked(30, 0, false)},
			"L=20 R=0 S=20 Retry-After=7",
		},
		{
			"a quota that is over is like any other", false, 0,
			[]limiter.Status{asked(10, 1, false), asked(20, -5, true), asked(30, 5, true)},
			"L=20 R=0 S=20",
		},
		{
			"all quotas over", true, 3*time.Second - time.Millisecond,
			[]limiter.Status{asked(10, -3, true), asked(20, -5, true)},
			"L=10 R=0 S=10 Retry-After=3",
		},
		{
			"a quota that is over beside one that is not", true, 8*time.Second - time.Millisecond,
			[]limiter.Status{asked(10, -8, false), asked(20, -900, true), asked(30, 5, true)},
			"L=10 R=0 S=10 Retry-After=8",
		},
		{
			"a quota that never passes beside one that does", true, 8*time.Second - time.Millisecond,
			[]limiter.Status{asked(10, -8, false), asked(20, -1000, true), asked(30, 5, true)},
			"L=10 R=0 S=10 Retry-After=8",
		},
		{
			"all quotas over and another limit", true, 900*time.Second - time.Millisecond,
			[]limiter.Status{asked(10, -8, false), asked(20, -900, true), asked(30, -1000, true)},
			"L=10 R=0 S=10 Retry-After=900",
		},
		{
			"quotas that never pass", true, algorithm.Never,
			[]limiter.Status{asked(20, -1000, true), asked(30, -1000, true)},
			"L=20 R=0 S=20",
		},
		{"never", true, algorithm.Never, []limiter.Status{asked(10, -7, false), asked(20, -1000, false)}, "L=20 R=0 S=20"},
		{"shadow mode for all", false, 0, []limiter.Status{asked(10, -7, false)}, "L=10 R=0 S=10"},
	}
	names := HeaderNames{Limit: "L", Remaining: "R", Reset: "S"}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, h := range names.headers(&limiter.Answer{Over: tt.over, RetryAfter: tt.wait, Statuses: tt.statuses}) {
				got = append(got, h.GetKey()+"="+h.GetValue())
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %q, want %s", got, tt.want)
			}
		})
	}
}

// The header for the fallback is sent alone, or before the others.
func TestDegradedHeader(t *testing.T) {
	degraded := asked(10, 3, false)
	degraded.Fallback = backend.FallbackLocal
	for _, tt := range []struct {
		names    HeaderNames
		statuses []limiter.Status
		want     string
	}{
		{HeaderNames{Degraded: "D"}, []limiter.Status{asked(5, 1, false), degraded}, "D=local"},
		{HeaderNames{Degraded: "D"}, []limiter.Status{asked(5, 1, false)}, ""},
		{HeaderNames{Degraded: "D"}, []limiter.Status{{}}, ""},
		{HeaderNames{Limit: "L", Remaining: "R", Reset: "S"}, []limiter.Status{degraded}, "L=10 R=3 S=10"},
		{
			HeaderNames{Limit: "L", Remaining: "R", Reset: "S", Degraded: "D"},
			[]limiter.Status{degraded},
			"D=local L=10 R=3 S=10",
		},
	} {
		var got []string
		a := &limiter.Answer{Statuses: tt.statuses}
		for i := range tt.statuses {
			a.Fallback = max(a.Fallback, tt.statuses[i].Fallback)
		}
		for _, h := range tt.names.headers(a) {
			got = append(got, h.GetKey()+"="+h.GetValue())
		}
		var resp pb.RateLimitResponse // as it is written in bytes
		if err := proto.Unmarshal(tt.names.appendHeaders(nil, a), &resp); err != nil {
			t.Fatal(err)
		}
		var wire []string
		for _, h := range resp.GetResponseHeadersToAdd() {
			wire = append(wire, h.GetKey()+"="+h.GetValue())
		}
		if strings.Join(got, " ") != tt.want || strings.Join(wire, " ") != tt.want {
			t.Errorf("%+v: got %q and %q, want %s", tt.names, got, wire, tt.want)
		}
	}
}

const metadataRules = `
domain: d
descriptors:
  - key: a
    rate_limit: {unit: year, requests_per_unit: 10}
    metadata: {pool: gold, deep: {x: 1, y: {z: 1}}, list: [1]}
  - key: b
    value_to_metric: true
    rate_limit: {unit: year, requests_per_unit: 1}
    metadata: {pool: silver, more: yes, deep: {y: {w: 2}, v: ~}, list: [2]}
  - key: c
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 10}
    metadata: {deep: 5, of: c}
  - key: u
    rate_limit: {unlimited: true}
`

func TestMetadata(t *testing.T) {
	f := startWith(t, metadataRules, limiter.Config{})
	f.cfg.MetadataEnabled = true
	steps := []struct {
		name string
		req  *pb.RateLimitRequest
		want string // the metadata, then the rest
	}{
		{
			"nothing to say", request(descriptor("x", "1", "y", "")),
			`null {"descriptors":[{"entries":["x=1","y="]}],"domain":"d"}`,
		},
		{
			"of one rule", request(descriptor("c", "1")),
			`{"deep":5,"of":"c"} {"descriptors":[{"entries":["c=1"]}],"domain":"d"}`,
		},
		{
			"merged, the first wins", request(descriptor("a", "1"), descriptor("b", "1"), descriptor("c", "1"),
				descriptor("u", "1")),
			`{"deep":{"v":null,"x":1,"y":{"w":2,"z":1}},"list":[1],"more":true,"of":"c","pool":"gold"} {"descriptors":[{"entries":["a=1"]},{"entries":["b=1"]},{"entries":["c=1"]},{"entries":["u=1"]}],"domain":"d"}`,
		},
		{
			"not of what refuses", request(descriptor("b", "1"), descriptor("c", "1")),
			`{"deep":5,"of":"c"} {"descriptors":[{"entries":["b=1"]},{"entries":["c=1"]}],"domain":"d"}`,
		},
		{
			"merging changed no rule", request(descriptor("a", "1")),
			`{"deep":{"x":1,"y":{"z":1}},"list":[1],"pool":"gold"} {"descriptors":[{"entries":["a=1"]}],"domain":"d"}`,
		},
		{"hits and limits", &pb.RateLimitRequest{Domain: "d", HitsAddend: 3, Descriptors: []*common.RateLimitDescriptor{{
			Entries:    descriptor("a", "1").Entries,
			HitsAddend: wrapperspb.UInt64(0),
			Limit:      &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_HOUR},
		}}}, `null {"descriptors":[{"entries":["a=1"],"hitsAddend":0,"limit":"requests_per_unit:5 unit:HOUR"}],"domain":"d","hitsAddend":3}`},
	}
	for _, st := range steps {
		t.Run(st.name, func(t *testing.T) {
			resp, err := f.ShouldRateLimit(t.Context(), st.req)
			if err != nil {
				t.Fatal(err)
			}
			text, err := protojson.Marshal(resp.GetDynamicMetadata())
			if err != nil {
				t.Fatal(err)
			}
			var fields map[string]any
			if err := json.Unmarshal(text, &fields); err != nil {
				t.Fatal(err)
			}
			of, err := json.Marshal(fields["metadata"])
			if err != nil {
				t.Fatal(err)
			}
			delete(fields, "metadata")
			rest, err := json.Marshal(fields)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(of) + " " + string(rest); got != st.want {
				t.Errorf("\n got %s\nwant %s", got, st.want)
			}
		})
	}
}

// A path in a tree of limits has its levels, and all of them in short.
func TestMetadataOfPaths(t *testing.T) {
	const tree = "schema: {user: {children: {'*': {limits: [1, 1, 1000], children: {trade: {limits: [0, 1, 100]}}}}}}\n"
	f := startWith(t, tree, limiter.Config{})
	f.cfg.MetadataEnabled = true
	for i, want := range []string{
		"[[0,1,0,-1,1000]] of 2", "[[1,1,0,100,2000]] of 2", "[[1,1,0,1000,2000]] of 2",
	} {
		resp, err := f.ShouldRateLimit(t.Context(), request(descriptor("user", "alex", "trade", "")))
		if err != nil {
			t.Fatal(err)
		}
		text, err := protojson.Marshal(resp.GetDynamicMetadata())
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Descriptors []struct {
				Summary []int
				Charges []any
			}
		}
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if s := strings.ReplaceAll(fmt.Sprintf("[%v] of %d", got.Descriptors[0].Summary, len(got.Descriptors[0].Charges)),
			" ", ","); s != strings.ReplaceAll(want, " ", ",") {
			t.Errorf("request %d: %s, want %s in %s", i+1, s, want, text)
		}
	}
	resp, err := f.ShouldRateLimit(t.Context(), request(descriptor("ip", "1")))
	if err != nil || strings.Contains(resp.GetDynamicMetadata().String(), "summary") {
		t.Errorf("%v, and nothing was asked: %v", err, resp.GetDynamicMetadata())
	}
}

func TestOnCall(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		f := start(t, nil)
		var calls []string
		f.cfg.OnCalls = func(protocol, method string, n int, took time.Duration) {
			if n != 1 {
				t.Errorf("%d calls", n)
			}
			if took < 0 || took > time.Minute {
				t.Errorf("took %v", took)
			}
			calls = append(calls, protocol+"/"+method)
		}
		_, conn := dial(t, f, cfg)
		if _, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request()); err == nil {
			t.Error("no error")
		}
		post(f.JSONHandler(), oneIP)
		post(f.JSONHandler(), "nonsense")
		if got := strings.Join(calls, " "); got != "grpc/ShouldRateLimit json/ShouldRateLimit" {
			t.Errorf("got %s", got)
		}
	})
}

// The v2 protocol, and any other, is answered UNIMPLEMENTED.
func TestUnknownMethods(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		_, conn := dial(t, start(t, nil), cfg)
		for _, method := range []string{
			"/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
			"/pb.lyft.ratelimit.RateLimitService/ShouldRateLimit",
			"/envoy.service.ratelimit.v3.RateLimitService/Other",
		} {
			err := conn.Invoke(t.Context(), method, request(), new(pb.RateLimitResponse))
			if err == nil || !strings.Contains(err.Error(), "Unimplemented") {
				t.Errorf("%s: %v", method, err)
			}
		}
	})
}

// With a burst callers are told the rule's rate; what passes at once is told apart.
func TestBurst(t *testing.T) {
	t.Parallel()
	f := startWith(t, `
domain: d
descriptors:
  - {key: burst, rate_limit: {algorithm: gcra, unit: minute, requests_per_unit: 100, burst: 20}}
  - {key: plain, rate_limit: {algorithm: gcra, unit: minute, requests_per_unit: 100}}
`, limiter.Config{})
	f.cfg.MetadataEnabled = true
	f.cfg.HeaderNames = &HeaderNames{Limit: "X-Limit", Remaining: "X-Remaining", Reset: "X-Reset"}
	for key, want := range map[string]string{
		"burst": "limit 100, header 100, 20 remaining, [map[atOnce:21 limit:100 over:false remaining:20 resetAfter:0.6 " +
			"rule:burst]]",
		"plain": "limit 100, header 100, 99 remaining, []",
	} {
		resp, err := f.ShouldRateLimit(t.Context(), request(descriptor(key, "1")))
		if err != nil {
			t.Fatal(err)
		}
		st := resp.GetStatuses()[0]
		list := resp.GetDynamicMetadata().AsMap()["descriptors"].([]any)[0].(map[string]any)["charges"]
		if list == nil {
			list = []any{}
		}
		got := fmt.Sprintf("limit %d, header %s, %d remaining, %v", st.GetCurrentLimit().GetRequestsPerUnit(),
			resp.GetResponseHeadersToAdd()[0].GetValue(), st.GetLimitRemaining(), list)
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", key, got, want)
		}
	}
}
