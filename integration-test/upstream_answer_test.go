package integration

import "testing"

const upstreamAnswersQuotas = `
descriptors:
- {key: q1, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: q2, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 4}}
- {key: qs, quota_mode: true, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: plain, rate_limit: {unit: year, requests_per_unit: 6}}
- {key: free, rate_limit: {unlimited: true}}
`

const upstreamAnswersPlain = `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: free, rate_limit: {unlimited: true}}
`

var upstreamAnswersCases = []sentence{
	{
		name: "statuses has one element per descriptor, in order: within, over, over in shadow, unlimited, no limit",
		rules: `
descriptors:
- {key: within, rate_limit: {unit: year, requests_per_unit: 5, name: w}}
- {key: over, rate_limit: {unit: month, requests_per_unit: 0, name: o}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: week, requests_per_unit: 0, name: s}}
- {key: free, rate_limit: {unlimited: true, name: f}}
`,
		steps: []step{
			{
				ask:  "free + shadow + none + over + within",
				want: "OK 4294967295 + OK 0/0 WEEK s + OK + OVER_LIMIT 0/0 MONTH o + OK 4/5 YEAR w",
			},
			{ask: "within + none + within", want: "OK 3/5 YEAR w + OK + OK 2/5 YEAR w"},
		},
	},
	{
		name: "one quota descriptor alone behaves like a normal limit",

		rules: upstreamAnswersQuotas,
		steps: []step{
			{ask: "q1", times: 2, want: "OK 0/2 YEAR"},
			{ask: "q1", want: "OVER_LIMIT 0/2 YEAR"},
			{ask: "q1 + plain + none + free", want: "OVER_LIMIT 0/2 YEAR + OK 5/6 YEAR + OK + OK 4294967295"},
		},
	},
	{
		name:  "of several quota descriptors all must be over",
		rules: upstreamAnswersQuotas,
		steps: []step{
			{ask: "q1 + q2", hits: 3, want: "OVER_LIMIT 0/2 YEAR + OK 1/4 YEAR -> OK"},
			{ask: "q2 + q1", want: "OK 0/4 YEAR + OVER_LIMIT 0/2 YEAR -> OK"},
			{ask: "q1 + q2", want: "OVER_LIMIT 0/2 YEAR + OVER_LIMIT 0/4 YEAR"},
		},
	},
	{
		name:  "any non-quota descriptor over its limit is enough",
		rules: upstreamAnswersQuotas,
		steps: []step{
			{ask: "plain [hits 7] + q1 + q2", want: "OVER_LIMIT 0/6 YEAR + OK 1/2 YEAR + OK 3/4 YEAR"},
			{ask: "q1 [hits 0] + q2 [hits 9] + plain=2", want: "OK 1/2 YEAR + OVER_LIMIT 0/4 YEAR + OK 5/6 YEAR -> OK"},
		},
	},
	{
		name:  "a quota rule in shadow mode counts as passed",
		rules: upstreamAnswersQuotas,
		steps: []step{{ask: "q1 [hits 3] + qs", want: "OVER_LIMIT 0/2 YEAR + OK 0/0 YEAR -> OK"}},
	},
}

var upstreamAnswersCases2 = []sentence{
	{
		name:  "QUOTA_MODE: a request is over when all its limits are",
		rules: upstreamAnswersPlain,
		steps: []step{
			{ask: "a + b", hits: 2, want: "OVER_LIMIT 0/1 YEAR + OK 0/2 YEAR -> OK"},
			{ask: "a + b", want: "OVER_LIMIT 0/1 YEAR + OVER_LIMIT 0/2 YEAR"},
			{ask: "a", want: "OVER_LIMIT 0/1 YEAR"},
		},
	},
	{
		name:  "QUOTA_MODE holds for request limits too",
		rules: upstreamAnswersPlain,
		steps: []step{
			{ask: "a=1 [limit 0/YEAR] + b", want: "OVER_LIMIT 0/0 YEAR + OK 1/2 YEAR -> OK"},
			{ask: "a=1 [limit 0/YEAR] + a=2 [limit 0/YEAR]", want: "OVER_LIMIT 0/0 YEAR + OVER_LIMIT 0/0 YEAR"},
		},
	},
	{
		name:  "with global QUOTA_MODE any unmatched descriptor keeps the request OK for ever",
		rules: upstreamAnswersPlain,
		steps: []step{{ask: "a [hits 9] + none", times: 2, want: "OVER_LIMIT 0/1 YEAR + OK -> OK"}},
	},
	{
		name:  "unlimited descriptors are not counted in QUOTA_MODE",
		rules: upstreamAnswersPlain,
		steps: []step{{ask: "a [hits 9] + free", want: "OVER_LIMIT 0/1 YEAR + OK 4294967295"}},
	},
}

var upstreamAnswersCases3 = []sentence{
	{
		name:  "SHADOW_MODE: OVER_LIMIT becomes OK, global_shadow_mode +1, the statuses keep their codes",
		rules: upstreamAnswersPlain,
		steps: []step{
			{ask: "a + b", want: "OK 0/1 YEAR + OK 1/2 YEAR", service: "none"},
			{ask: "a + b", want: "OVER_LIMIT 0/1 YEAR + OK 0/2 YEAR -> OK", service: "global_shadow_mode 1"},
			{ask: "a + b", want: "OVER_LIMIT 0/1 YEAR + OVER_LIMIT 0/2 YEAR -> OK", service: "global_shadow_mode 1"},
			{ask: "a=9 [limit 0/YEAR]", want: "OVER_LIMIT 0/0 YEAR -> OK", service: "global_shadow_mode 1"},
		},
	},
	{
		name:  "global shadow mode changes nothing in the accounting",
		rules: upstreamAnswersPlain,
		steps: []step{
			{
				ask: "a + b", hits: 3, want: "OVER_LIMIT 0/1 YEAR + OVER_LIMIT 0/2 YEAR -> OK",
				counts: "a: total_hits 3, over_limit 2, near_limit 1; b: total_hits 3, over_limit 1, near_limit 1",
			},
			{ask: "a", want: "OVER_LIMIT 0/1 YEAR -> OK", counts: "a: total_hits 1, over_limit 1"},
		},
	},
}

var upstreamAnswersCases4 = []sentence{
	{
		name: "differs: STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: the refused key does not grow, statistics count as " +
			"upstream's",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 10}}
`,
		steps: []step{
			{ask: "a + b", want: "OK 1/2 YEAR + OK 9/10 YEAR"},
			{
				ask:    "a [hits 2] + b [hits 3]",
				want:   "OVER_LIMIT 0/2 YEAR + OK 9/10 YEAR",
				counts: "a: total_hits 2, over_limit 1, near_limit 1; b: total_hits 3, within_limit 3",
			},
			{ask: "a + b", want: "OK 0/2 YEAR + OK 8/10 YEAR"},
			{ask: "b + a", times: 3, want: "OK 8/10 YEAR + OVER_LIMIT 0/2 YEAR"},
		},
	},
	{
		name: "differs: STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: shadow rules stop nobody",
		rules: `
descriptors:
- {key: s, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 10}}
`,
		steps: []step{{ask: "s + b", times: 3, want: "OK 0/0 YEAR + OK 7/10 YEAR"}},
	},
}

// From the verdicts on descriptors to the answer.
func TestUpstreamAnswers(t *testing.T) {
	prove(t, nil, upstreamAnswersCases)

	prove(t, []string{"QUOTA_MODE=true"}, upstreamAnswersCases2)

	prove(t, []string{"SHADOW_MODE=true"}, upstreamAnswersCases3)

	prove(t, []string{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"}, upstreamAnswersCases4)
}
