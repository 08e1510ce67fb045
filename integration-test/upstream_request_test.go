package integration

import (
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What a request may say, and what it then costs.
// failed is what a failed call counts.
const failed = "call.should_rate_limit.service_error 1"

var upstreamRequestsCases = []sentence{
	{
		name: "differs: an empty domain and no descriptors are INVALID_ARGUMENT, service_error +1",
		steps: []step{
			{domain: noDomain, ask: "a", fails: codes.InvalidArgument, service: failed},
			{ask: "", fails: codes.InvalidArgument, service: failed},
			{domain: noDomain, ask: "", fails: codes.InvalidArgument, service: failed},
			{domain: "nowhere", ask: "", fails: codes.InvalidArgument, service: failed, counts: "none"},
		},
	},
	{
		name: "the request's hits_addend holds for each descriptor, 0 meaning 1",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 10}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 20}}
`,
		steps: []step{
			{ask: "a + b", want: "OK 9/10 YEAR + OK 19/20 YEAR"},
			{
				ask: "a + b", hits: 4, want: "OK 5/10 YEAR + OK 15/20 YEAR",
				counts: "a: total_hits 4, within_limit 4; b: total_hits 4, within_limit 4",
			},
			{ask: "a + b", hits: 6, want: "OVER_LIMIT 0/10 YEAR + OK 9/20 YEAR"},
			{ask: "a", want: "OVER_LIMIT 0/10 YEAR"}, // what went over was counted all the same
			{ask: "a + b", hits: 4294967295, want: "OVER_LIMIT 0/10 YEAR + OVER_LIMIT 0/20 YEAR"},
		},
	},
	{
		name: "a descriptor's hits_addend, if present, is stronger, including 0: look but do not count",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 10}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 10}}
`,
		steps: []step{
			{ask: "a [hits 3] + b", hits: 2, want: "OK 7/10 YEAR + OK 8/10 YEAR"},
			{ask: "a [hits 0] + b", hits: 2, want: "OK 7/10 YEAR + OK 6/10 YEAR", counts: "b: total_hits 2, within_limit 2"},
			{ask: "a [hits 7]", want: "OK 0/10 YEAR"},
			{ask: "a [hits 0]", times: 3, want: "OK 0/10 YEAR"},
			{ask: "a [hits 1]", want: "OVER_LIMIT 0/10 YEAR"},
			{ask: "a [hits 0]", want: "OVER_LIMIT 0/10 YEAR", counts: "none"},
		},
	},
	{
		name: "differs: with the memory store, refused hits use up nothing of a raised limit",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 3}}
`,
		steps: []step{
			{ask: "a [hits 8]", want: "OVER_LIMIT 0/3 YEAR"},
			{
				put:  "descriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: 10}}\n",
				ask:  "a [hits 0]",
				want: "OK 10/10 YEAR",
			},
		},
	},
	{
		name: "the same descriptor twice in one request is counted twice, the second one seeing the first",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 3}}
`,
		steps: []step{
			{ask: "a=1 + a=1", want: "OK 2/3 YEAR + OK 1/3 YEAR"},
			{ask: "a=1 + a=1", want: "OK 0/3 YEAR + OVER_LIMIT 0/3 YEAR"},
		},
	},
	{
		name: "differs: addends saturate at 2^48",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 3}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 3}}
`,
		steps: []step{
			{
				ask: "a [hits 18446744073709551615]", want: "OVER_LIMIT 0/3 YEAR",
				counts: "a: total_hits 281474976710656, near_limit 1, over_limit 281474976710653",
			},
			{ask: "a [hits 9223372036854775808]", times: 3, want: "OVER_LIMIT 0/3 YEAR"},
			{ask: "a", want: "OVER_LIMIT 0/3 YEAR"},
			{ask: "b", want: "OK 2/3 YEAR"},
		},
	},
	{
		name: "differs: is_negative_hits gives hits back, floored at zero, never OVER_LIMIT, no hits in the statistics",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: c, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
`,
		steps: []step{
			{ask: "a [hits 8]", want: "OVER_LIMIT 0/5 YEAR"},
			{ask: "a [refund]", want: "OK 0/5 YEAR", counts: "none"},
			{ask: "a [hits 4, refund]", want: "OK 2/5 YEAR", counts: "none"},
			{ask: "a [refund]", hits: 2, want: "OK 4/5 YEAR"},
			{ask: "a [hits 99, refund]", want: "OK 5/5 YEAR"},
			{ask: "a", want: "OK 4/5 YEAR"},
			{ask: "b [refund] + c [refund]", want: "OK 0/0 YEAR + OK 2/2 YEAR", counts: "none"},
			{ask: "c [hits 3]", want: "OK 0/2 YEAR"},
			{ask: "c [hits 2, refund]", want: "OK 1/2 YEAR"},
		},
	},
}

func TestUpstreamRequests(t *testing.T) {
	prove(t, nil, upstreamRequestsCases)
}

// A limit that comes with a descriptor.
func TestUpstreamRequestLimits(t *testing.T) {
	rules := `
descriptors:
- {key: plain, rate_limit: {unit: year, requests_per_unit: 5, name: plain}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: quota, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: free, rate_limit: {unlimited: true}}
`
	prove(t, nil, []sentence{
		{
			name:  "it replaces whatever the configuration says, and is shown as current_limit without a name",
			rules: rules,
			steps: []step{
				{
					ask:  "plain [limit 7/MONTH] + none [limit 8/DAY] + free [limit 1/WEEK]",
					want: "OK 6/7 MONTH + OK 7/8 DAY + OK 0/1 WEEK",
				},
				{ask: "free [limit 1/WEEK] + deep=1, deeper=2 [limit 2/YEAR]", want: "OVER_LIMIT 0/1 WEEK + OK 1/2 YEAR"},
			},
		},
		{
			name:  "it is not shadow, not quota",
			rules: rules,
			steps: []step{
				{ask: "shadow", want: "OK 0/0 YEAR"},
				{ask: "shadow [limit 0/YEAR]", want: "OVER_LIMIT 0/0 YEAR"},
				// one quota descriptor, and over
				{ask: "quota [limit 9/YEAR] + quota=1", want: "OK 8/9 YEAR + OVER_LIMIT 0/0 YEAR"},
				{ask: "quota [limit 0/YEAR] + free", want: "OVER_LIMIT 0/0 YEAR + OK 4294967295"},
			},
		},
		{
			name:  "it shares the counter with a configured rule of the same unit",
			rules: rules,
			steps: []step{
				{ask: "plain=1 [hits 3]", want: "OK 2/5 YEAR plain"},
				{ask: "plain=1 [limit 10/YEAR]", want: "OK 6/10 YEAR"},
				{ask: "plain=1", want: "OK 0/5 YEAR plain"},
				{ask: "plain=1 [limit 2/YEAR]", want: "OVER_LIMIT 0/2 YEAR"},
			},
		},
		{
			name:  "its stat key is the domain and the entries, key_value or key when the value is empty",
			rules: rules,
			steps: []step{
				{
					ask: "plain=1, x=, y=2 [limit 10/YEAR]", want: "OK 9/10 YEAR",
					counts: "plain_1.x.y_2: total_hits 1, within_limit 1",
				},
				{
					ask: "ip=10.0.0.1, url=a:b|c [limit 10/YEAR, hits 2]", want: "OK 8/10 YEAR",
					counts: "ip_10_0_0_1.url_a_b_c: total_hits 2, within_limit 2",
				},
				{
					ask: "plain=z [limit 1/YEAR, hits 3]", want: "OVER_LIMIT 0/1 YEAR",
					counts: "plain_z: total_hits 3, over_limit 2, near_limit 1",
				},
			},
		},
		{
			name:  "units: SECOND MINUTE HOUR DAY MONTH YEAR, and the number 7 works as WEEK",
			rules: rules,
			steps: []step{
				{
					ask: "a [limit 9/SECOND] + b [limit 9/MINUTE] + c [limit 9/HOUR] + d [limit 9/DAY] + e [limit 9/MONTH] + f " +
						"[limit 9/YEAR] + g [limit 9/7]",
					want: "OK 8/9 SECOND + OK 8/9 MINUTE + OK 8/9 HOUR + OK 8/9 DAY + OK 8/9 MONTH + OK 8/9 YEAR + OK 8/9 WEEK",
				},
			},
		},
		{
			name:  "differs: a bad or missing override unit is INVALID_ARGUMENT, and nothing is charged",
			rules: rules,
			steps: []step{
				{ask: "plain + plain [limit 5]", fails: codes.InvalidArgument, service: "call.should_rate_limit.service_error 1"},
				{ask: "plain [limit 5/8] + plain", fails: codes.InvalidArgument},
				{ask: "plain [limit 5/-1] + plain", fails: codes.InvalidArgument},
				{ask: "plain", want: "OK 4/5 YEAR plain"},
			},
		},
	})
}

// A key is made of the domain and the request's entries, and nothing else.
func TestUpstreamCounters(t *testing.T) {
	prove(t, nil, []sentence{
		{
			name: "each value, and each order of entries, has a counter of its own",
			rules: `
descriptors:
- key: a
  rate_limit: {unit: year, requests_per_unit: 9}
  descriptors:
  - {key: b, rate_limit: {unit: year, requests_per_unit: 9}}
- key: b
  descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 9}}
`,
			steps: []step{
				{ask: "a=1 + a=2 + a=1, b=1 + b=1, a=1", want: "OK 8/9 YEAR + OK 8/9 YEAR + OK 8/9 YEAR + OK 8/9 YEAR"},
				{ask: "a=1 + a= + a=1, b=2", want: "OK 7/9 YEAR + OK 8/9 YEAR + OK 8/9 YEAR"},
			},
		},
		{
			name: "nothing is escaped or hashed: (a, b_c) and (a_b, c) share a key",
			rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: a_b, rate_limit: {unit: year, requests_per_unit: 5}}
`,
			steps: []step{{ask: "a=b_c + a_b=c", want: "OK 8/9 YEAR + OK 3/5 YEAR"}},
		},
	})
}

// What only one of the two protocols can be asked.
func TestUpstreamProtocols(t *testing.T) {
	u := startUpstream(t, nil, []sentence{{rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: none, rate_limit: {unit: year}}
`}})
	body := func(fields string) string {
		return `{"domain": "json0", "descriptors": [{"entries": [{"key": "a", "value": "1"}]` + fields + `}]}`
	}
	t.Run("/json takes camelCase and original names, and a number or numeric string for hitsAddend", func(t *testing.T) {
		for i, test := range []struct{ body, want string }{
			{body(`, "hitsAddend": 1`), "OK 4/5 YEAR"},
			{body(`, "hits_addend": "1"`), "OK 3/5 YEAR"},
			{body(`, "hits_addend": 0`), "OK 3/5 YEAR"},
			{body(`, "limit": {"requestsPerUnit": 9, "unit": "YEAR"}`), "OK 6/9 YEAR"},
			{body(`, "limit": {"requests_per_unit": 9, "unit": 6}`), "OK 5/9 YEAR"},
		} {
			if r := u.post(t, test.body); r.code != codes.OK || answerText(r.answer) != test.want {
				t.Errorf("request %d: got %v %s, want %s", i+1, r.code, r.text, test.want)
			}
		}
	})
	t.Run("/json is strict: unknown fields, trailing text, wrong types and an empty body are 400", func(t *testing.T) {
		for _, text := range []string{
			body(`, "colour": 1`), body("") + "x", body(`, "hitsAddend": "many"`),
			body(`, "hitsAddend": -1`), "", "[]",
		} {
			if r := u.post(t, text); r.http.StatusCode != http.StatusBadRequest {
				t.Errorf("%q: %s", text, r.http.Status)
			}
		}
	})
	t.Run("/json leaves default-valued fields out", func(t *testing.T) {
		const want = `{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"unit":"YEAR"},"durationUntilReset":"`
		r := u.post(t, `{"domain": "json0", "descriptors": [{"entries": [{"key": "none"}]}]}`)
		if tight := strings.ReplaceAll(r.text, " ", ""); !strings.HasPrefix(tight, want) {
			t.Errorf("got  %s\nwant %s...", tight, want)
		}
		if got := r.http.Header.Get("Content-Type"); got != "application/json" {
			t.Errorf("the content type is %q", got)
		}
	})
	t.Run("differs: /json answers 405 for other methods than POST, 413 above 1 MiB", func(t *testing.T) {
		resp, err := client.Get("http://" + u.service.http + "/json")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("GET: %s", resp.Status)
		}
		if r := u.post(t, strings.Repeat(" ", 1<<20)+body("")); r.http.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("more than 1 MiB: %s", r.http.Status)
		}
	})
	t.Run("gRPC ignores unknown protobuf fields", func(t *testing.T) {
		req, err := newRequest("grpc0", "a=1")
		if err != nil {
			t.Fatal(err)
		}
		req.ProtoReflect().SetUnknown([]byte{0xfa, 0x3f, 0x03, 'o', 'd', 'd'}) // field 1023, three bytes
		answer, err := u.call(t, req)
		if err != nil || answerText(answer) != "OK 4/5 YEAR" {
			t.Errorf("got %v, %v", answer, err)
		}
	})
	t.Run("the v2 protocol is UNIMPLEMENTED", func(t *testing.T) {
		req, err := newRequest("grpc0", "a=1")
		if err != nil {
			t.Fatal(err)
		}
		err = u.conn.Invoke(t.Context(), "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit", req, req)
		if code := status.Code(err); code != codes.Unimplemented {
			t.Errorf("got %v, want UNIMPLEMENTED", err)
		}
	})
}
