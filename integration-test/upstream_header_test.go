package integration

import (
	"fmt"
	"testing"
)

// limitHeaders are the three headers under their default names.
func limitHeaders(limit, remaining int, unit string) string {
	return fmt.Sprintf("RateLimit-Limit %d, RateLimit-Remaining %d, RateLimit-Reset %s", limit, remaining, unit)
}

// overHeaders are those of a request that may come again when the window ends.
func overHeaders(limit int, unit string) string {
	return limitHeaders(limit, 0, unit) + ", Retry-After " + unit
}

var upstreamHeadersCases = []sentence{
	{
		name: "always three, in the order limit, remaining, reset; differs: Retry-After is added when over",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: b, rate_limit: {unit: month, requests_per_unit: 2}}
`,
		steps: []step{
			{ask: "a", want: "OK 1/2 YEAR", headers: limitHeaders(2, 1, "YEAR")},
			{ask: "a [hits 0]", want: "OK 1/2 YEAR", headers: limitHeaders(2, 1, "YEAR")},
			{ask: "a [hits 2]", want: "OVER_LIMIT 0/2 YEAR", headers: overHeaders(2, "YEAR")},
			{ask: "b [hits 2]", want: "OK 0/2 MONTH", headers: limitHeaders(2, 0, "MONTH")},
		},
	},
	{
		name: "differs: no Retry-After when the request can never pass",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 2}}
`,
		steps: []step{
			{ask: "a", want: "OVER_LIMIT 0/0 YEAR", headers: limitHeaders(0, 0, "YEAR")},
			{ask: "b [hits 3]", want: "OVER_LIMIT 0/2 YEAR", headers: limitHeaders(2, 0, "YEAR")},
			{ask: "b", want: "OVER_LIMIT 0/2 YEAR", headers: overHeaders(2, "YEAR")},
		},
	},
	{
		name: "among descriptors with current_limit the smallest remaining is chosen, the first one on ties",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 10}}
- {key: b, rate_limit: {unit: month, requests_per_unit: 5}}
- {key: c, rate_limit: {unit: week, requests_per_unit: 6}}
- {key: free, rate_limit: {unlimited: true}}
`,
		steps: []step{
			{
				ask: "a + b + none + free", want: "OK 9/10 YEAR + OK 4/5 MONTH + OK + OK 4294967295",
				headers: limitHeaders(5, 4, "MONTH"),
			},
			{ask: "c [hits 2] + b [hits 0]", want: "OK 4/6 WEEK + OK 4/5 MONTH", headers: limitHeaders(6, 4, "WEEK")},
			{ask: "b [hits 0] + c [hits 0]", want: "OK 4/5 MONTH + OK 4/6 WEEK", headers: limitHeaders(5, 4, "MONTH")},
		},
	},
	{
		name: "the last OVER_LIMIT non-quota descriptor wins",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: c, rate_limit: {unit: year, requests_per_unit: 3}}
- {key: q, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 4}}
`,
		steps: []step{
			{
				ask: "a + b [hits 2] + c [hits 3] + q [hits 4]", want: "OK 0/1 YEAR + OK 0/2 YEAR + OK 0/3 YEAR + OK 0/4 YEAR",
				headers: limitHeaders(1, 0, "YEAR"),
			},
			{
				ask: "a [hits 0] + b + c [hits 0]", want: "OK 0/1 YEAR + OVER_LIMIT 0/2 YEAR + OK 0/3 YEAR",
				headers: overHeaders(2, "YEAR"),
			},
			{
				ask: "a + b + c [hits 0]", want: "OVER_LIMIT 0/1 YEAR + OVER_LIMIT 0/2 YEAR + OK 0/3 YEAR",
				headers: overHeaders(2, "YEAR"),
			},
			{
				ask: "b + a + q", want: "OVER_LIMIT 0/2 YEAR + OVER_LIMIT 0/1 YEAR + OVER_LIMIT 0/4 YEAR",
				headers: overHeaders(1, "YEAR"),
			},
			{ask: "q + a", want: "OVER_LIMIT 0/4 YEAR + OVER_LIMIT 0/1 YEAR", headers: overHeaders(1, "YEAR")},
		},
	},
	{
		name: "an OVER_LIMIT quota descriptor is chosen only by its remaining",
		rules: `
descriptors:
- {key: q, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 4}}
- {key: p, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: a, rate_limit: {unit: year, requests_per_unit: 1}}
`,
		steps: []step{
			{ask: "p + q [hits 5]", want: "OK 8/9 YEAR + OVER_LIMIT 0/4 YEAR -> OK", headers: limitHeaders(4, 0, "YEAR")},
			{
				ask: "p + a + q", want: "OK 7/9 YEAR + OK 0/1 YEAR + OVER_LIMIT 0/4 YEAR -> OK",
				headers: limitHeaders(1, 0, "YEAR"),
			},
			{ask: "q", want: "OVER_LIMIT 0/4 YEAR", headers: overHeaders(4, "YEAR")},
		},
	},
	{
		name: "a shadow rule that is over has nothing remaining",
		rules: `
descriptors:
- {key: s, shadow_mode: true, rate_limit: {unit: week, requests_per_unit: 1}}
- {key: a, rate_limit: {unit: year, requests_per_unit: 3}}
`,
		steps: []step{{ask: "a + s", times: 2, want: "OK 1/3 YEAR + OK 0/1 WEEK", headers: limitHeaders(1, 0, "WEEK")}},
	},
	{
		name: "differs: Retry-After is the longest wait of those that refuse",
		rules: `
descriptors:
- {key: long, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: short, rate_limit: {unit: day, requests_per_unit: 2}}
`,
		steps: []step{{
			ask: "long + short", times: 3,
			want: "OVER_LIMIT 0/1 YEAR + OVER_LIMIT 0/2 DAY", headers: limitHeaders(2, 0, "DAY") + ", Retry-After YEAR",
		}},
	},
	{
		name: "no descriptor with a limit: no headers",
		rules: `
descriptors:
- {key: free, rate_limit: {unlimited: true}}
`,
		steps: []step{
			{ask: "free + none", want: "OK 4294967295 + OK"},
			{domain: "nowhere", ask: "a", want: "OK"},
			{ask: "free [limit 3/YEAR] + none", want: "OK 2/3 YEAR + OK", headers: limitHeaders(3, 2, "YEAR")},
		},
	},
}

var upstreamHeadersCases2 = []sentence{
	{
		name: "the headers' names are settings",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 2}}
`,
		steps: []step{{ask: "a", want: "OK 1/2 YEAR", headers: "X-Max 2, X-Left 1, x-ends-in YEAR"}},
	},
	{
		name: "headers are also added in global shadow mode, with over-limit values",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: b, rate_limit: {unit: month, requests_per_unit: 9}}
`,
		steps: []step{{
			ask: "a [hits 2] + b", times: 2, want: "OVER_LIMIT 0/2 YEAR + OK 7/9 MONTH -> OK",
			headers: "X-Max 2, X-Left 0, x-ends-in YEAR",
		}},
	},
}

// Headers for the caller's caller.
func TestUpstreamHeaders(t *testing.T) {
	prove(t, []string{"LIMIT_RESPONSE_HEADERS_ENABLED=true"}, upstreamHeadersCases)

	prove(t, []string{
		"LIMIT_RESPONSE_HEADERS_ENABLED=true", "SHADOW_MODE=true",
		"LIMIT_LIMIT_HEADER=X-Max", "LIMIT_REMAINING_HEADER=X-Left", "LIMIT_RESET_HEADER=x-ends-in",
	}, upstreamHeadersCases2)
}

// Dynamic metadata for the caller.
func TestUpstreamMetadata(t *testing.T) {
	prove(t, []string{"RESPONSE_DYNAMIC_METADATA=true"}, []sentence{
		{
			name: "domain and descriptors; limit, hitsAddend only if present",
			rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 9}}
`,
			steps: []step{
				{
					ask: "a=1, b=2 + a=", want: "OK + OK 8/9 YEAR",
					metadata: `{"domain": "$domain", "descriptors": [{"entries": ["a=1", "b=2"]}, {"entries": ["a="]}]}`,
				},
				{
					ask: "a=", hits: 3, want: "OK 5/9 YEAR",
					metadata: `{"domain": "$domain", "hitsAddend": 3, "descriptors": [{"entries": ["a="]}]}`,
				},
				{
					ask: "a= [hits 0] + a= [hits 2]", want: "OK 5/9 YEAR + OK 3/9 YEAR",
					metadata: `{"domain": "$domain", "descriptors": [{"entries": ["a="], "hitsAddend": 0}, {"entries": ["a="], "hitsAddend": 2}]}`,
				},
				{
					ask: "a=x [limit 5/YEAR]", want: "OK 4/5 YEAR",
					metadata: `{"domain": "$domain", "descriptors": [{"entries": ["a=x"], "limit": "*"}]}`,
				},
				{
					domain: "nowhere", ask: "a=1", want: "OK",
					metadata: `{"domain": "nowhere", "descriptors": [{"entries": ["a=1"]}]}`,
				},
			},
		},
		{
			name: "metadata: that of the rules of descriptors that passed, in order; first value wins, maps are merged " +
				"recursively",
			rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 9}, metadata: {tier: gold, deep: {x: 1, in: {p: true}}}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 9}, metadata: {tier: iron, deep: {x: 2, y: [1, two], in: {q: 1.5}}, only: b}}
- {key: c, rate_limit: {unit: year, requests_per_unit: 9}, metadata: {deep: flat, tier: {of: map}}}
`,
			steps: []step{
				{
					ask: "a", want: "OK 8/9 YEAR",
					metadata: `{"domain": "$domain", "descriptors": [{"entries": ["a="]}], "metadata": {"tier": "gold", "deep": {"x": 1, "in": {"p": true}}}}`,
				},
				{ask: "a + b", want: "OK 7/9 YEAR + OK 8/9 YEAR", metadata: `{"domain": "$domain", "descriptors": [{"entries": ["a="]}, {"entries": ["b="]}],
					"metadata": {"tier": "gold", "only": "b", "deep": {"x": 1, "y": [1, "two"], "in": {"p": true, "q": 1.5}}}}`},
				{ask: "b + a + c", want: "OK 7/9 YEAR + OK 6/9 YEAR + OK 8/9 YEAR", metadata: `{"domain": "$domain", "descriptors": [{"entries": ["b="]}, {"entries": ["a="]}, {"entries": ["c="]}],
					"metadata": {"tier": "iron", "only": "b", "deep": {"x": 2, "y": [1, "two"], "in": {"p": true, "q": 1.5}}}}`},
			},
		},
		{
			name: "differs: metadata is never merged into shared state",
			rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 9}, metadata: {deep: {x: 1}}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 9}, metadata: {deep: {y: 2}}}
`,
			steps: []step{
				{
					ask: "a + b", times: 2, want: "OK 7/9 YEAR + OK 7/9 YEAR",
					metadata: `{"domain": "$domain", "descriptors": [{"entries": ["a="]}, {"entries": ["b="]}], "metadata": {"deep": {"x": 1, "y": 2}}}`,
				},
				{
					ask: "a", want: "OK 6/9 YEAR",
					metadata: `{"domain": "$domain", "descriptors": [{"entries": ["a="]}], "metadata": {"deep": {"x": 1}}}`,
				},
			},
		},
		{
			name: "metadata: nothing for OVER_LIMIT, unlimited, replaced or request limits; left out when empty",
			rules: `
descriptors:
- {key: over, rate_limit: {unit: year, requests_per_unit: 0}, metadata: {from: over}}
- {key: free, rate_limit: {unlimited: true}, metadata: {from: free}}
- {key: old, rate_limit: {unit: year, requests_per_unit: 5, name: old}, metadata: {from: old}}
- {key: new, rate_limit: {unit: year, requests_per_unit: 5, replaces: [{name: old}]}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}, metadata: {from: shadow}}
`,
			steps: []step{
				{
					ask: "over", want: "OVER_LIMIT 0/0 YEAR",
					metadata: `{"domain": "$domain", "descriptors": [{"entries": ["over="]}]}`,
				},
				{ask: "free", want: "OK 4294967295", metadata: `{"domain": "$domain", "descriptors": [{"entries": ["free="]}]}`},
				{
					ask: "old + new", want: "OK + OK 4/5 YEAR",
					metadata: `{"domain": "$domain", "descriptors": [{"entries": ["old="]}, {"entries": ["new="]}]}`,
				},
				{
					ask: "old [limit 5/YEAR]", want: "OK 4/5 YEAR",
					metadata: `{"domain": "$domain", "descriptors": [{"entries": ["old="], "limit": "*"}]}`,
				},
				{
					ask: "over + shadow", want: "OVER_LIMIT 0/0 YEAR + OK 0/0 YEAR",
					metadata: `{"domain": "$domain", "descriptors": [{"entries": ["over="]}, {"entries": ["shadow="]}], "metadata": {"from": "shadow"}}`,
				},
			},
		},
		{
			name: "differs: metadata survives value_to_metric and detailed_metric",
			rules: `
descriptors:
- {key: a, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 5}, metadata: {tier: gold}}
- {key: b, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 5}, metadata: {zone: 1}}
`,
			steps: []step{
				{
					ask: "a=1 + b=2", want: "OK 4/5 YEAR + OK 4/5 YEAR",
					metadata: `{"domain": "$domain", "descriptors": [{"entries": ["a=1"]}, {"entries": ["b=2"]}], "metadata": {"tier": "gold", "zone": 1}}`,
				},
			},
		},
	})
}
