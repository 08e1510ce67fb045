package integration

import "testing"

var upstreamMatchingCases = []sentence{
	{
		name: "unknown domain: no limit, domain_not_found counts each descriptor, a request-level limit does not help",
		steps: []step{
			{domain: "nowhere", ask: "a=1 + b=2", want: "OK + OK", counts: "domain_not_found 2", service: "none"},
			{domain: "nowhere", ask: "a=1 [limit 0/YEAR]", want: "OK", counts: "domain_not_found 1"},
			{domain: "nowhere", ask: "a=1 [limit 1]", want: "OK", counts: "domain_not_found 1"},
		},
	},
	{
		name: "at each level the exact value is tried first, then the wildcards, then the key alone",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 30}}
- {key: a, value: x*, rate_limit: {unit: year, requests_per_unit: 20}}
- {key: a, value: xy, rate_limit: {unit: year, requests_per_unit: 10}}
`,
		steps: []step{
			{ask: "a=xy + a=xz + a=z", want: "OK 9/10 YEAR + OK 19/20 YEAR + OK 29/30 YEAR"},
			{ask: "b=xy", want: "OK"},
		},
	},
	{
		name: "wildcards are tried in file order, first hit wins, not the longest",
		rules: `
descriptors:
- {key: a, value: /f*, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: a, value: /files/*, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: a, value: "*s", rate_limit: {unit: year, requests_per_unit: 3}}
`,
		steps: []step{
			{ask: "a=/files/1 + a=/files + a=/docs", want: "OK 0/1 YEAR + OK 0/1 YEAR + OK 2/3 YEAR"},
		},
	},
	{
		name: "case sensitive throughout, byte comparison",
		rules: `
descriptors:
- {key: Key, value: É, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: w, value: A*, rate_limit: {unit: year, requests_per_unit: 9}}
`,
		steps: []step{
			{ask: "Key=É + Key=é + key=É + Key=E\u0301", want: "OK 8/9 YEAR + OK + OK + OK"}, // the last is É in other bytes
			{ask: "w=Ab + w=ab", want: "OK 8/9 YEAR + OK"},
		},
	},
	{
		name: "no backtracking: once a branch is taken siblings are not reconsidered if deeper levels fail",
		rules: `
descriptors:
- key: a
  value: x
  descriptors:
  - {key: deep, rate_limit: {unit: year, requests_per_unit: 1}}
- key: a
  value: y*
  descriptors:
  - {key: deep, rate_limit: {unit: year, requests_per_unit: 2}}
- key: a
  descriptors:
  - {key: other, rate_limit: {unit: year, requests_per_unit: 3}}
`,
		steps: []step{
			{ask: "a=x, other=1 + a=y1, other=1 + a=z, other=1", want: "OK + OK + OK 2/3 YEAR"},
			{ask: "a=x, deep=1 + a=y1, deep=1 + a=z, deep=1", want: "OK 0/1 YEAR + OK 1/2 YEAR + OK"},
		},
	},
	{
		name: "a limit applies only if the last entry lands on it: shallower or deeper requests get none",
		rules: `
descriptors:
- key: a
  rate_limit: {unit: year, requests_per_unit: 5}
  descriptors:
  - key: b
    descriptors:
    - {key: c, rate_limit: {unit: year, requests_per_unit: 6}}
`,
		steps: []step{
			{ask: "a=1 + a=1, b=1 + a=1, b=1, c=1 + a=1, b=1, c=1, d=1", want: "OK 4/5 YEAR + OK + OK 5/6 YEAR + OK"},
			{ask: "b=1 + b=1, a=1 + a=1, x=1", want: "OK + OK + OK"},
		},
	},
	{
		name: "no entries: no limit",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 5}}
`,
		steps: []step{{ask: "nothing + a=1", want: "OK + OK 4/5 YEAR", counts: "a: total_hits 1, within_limit 1"}},
	},
	{
		name: "a descriptor with neither rate_limit nor descriptors whitelists what it matches",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: a, value: friend}
`,
		steps: []step{{ask: "a=friend + a=foe", want: "OK + OK 4/5 YEAR"}},
	},
	{
		name: "an entry with empty value matches a rule with key only",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: b, value: x, rate_limit: {unit: year, requests_per_unit: 5}}
`,
		steps: []step{{ask: "a= + b=", want: "OK 4/5 YEAR + OK"}},
	},
	{
		name: "differs: {key: a_b} is not found by (a, b)",
		rules: `
descriptors:
- {key: a_b, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: c, value: d_e, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: f_, rate_limit: {unit: year, requests_per_unit: 5}}
`,
		steps: []step{
			{ask: "a=b + c_d=e + f=", want: "OK + OK + OK"},
			{ask: "a_b=1 + c=d_e + f_=1", want: "OK 4/5 YEAR + OK 4/5 YEAR + OK 4/5 YEAR"},
		},
	},
	{
		name: "each * is zero or more bytes, literals in order, the first anchored at the start, the last at the end",
		rules: `
descriptors:
- {key: a, value: x*y*z, rate_limit: {unit: year, requests_per_unit: 5}}
`,
		steps: []step{
			{ask: "a=xyz + a=x1y2z + a=xzyz", want: "OK 4/5 YEAR + OK 4/5 YEAR + OK 4/5 YEAR"},
			{ask: "a=1xyz + a=xyz1 + a=xzy + a=xz", want: "OK + OK + OK + OK"},
		},
	},
	{
		name: "* alone matches also the empty value",
		rules: `
descriptors:
- {key: a, value: "*", rate_limit: {unit: year, requests_per_unit: 5}}
`,
		steps: []step{{ask: "a= + a=x + b=x", want: "OK 4/5 YEAR + OK 4/5 YEAR + OK"}},
	},
	{
		name: "a literal * in a request is an ordinary byte, and hits the rule ex* exactly",
		rules: `
descriptors:
- {key: a, value: e*, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: a, value: ex*, rate_limit: {unit: year, requests_per_unit: 2}}
`,
		steps: []step{{ask: "a=ex* + a=exa + a=e*x", want: "OK 1/2 YEAR + OK 0/1 YEAR + OK 0/1 YEAR"}},
	},
	{
		name: "a key-only rule star* matches every entry whose key_value begins with star",
		rules: `
descriptors:
- {key: star*, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: p*h, value: q, rate_limit: {unit: year, requests_per_unit: 6}}
`,
		steps: []step{
			{ask: "star=x + starlight= + sta=r", want: "OK 4/5 YEAR + OK 4/5 YEAR + OK"},
			{ask: "path=q + p=h_q + path=r", want: "OK 5/6 YEAR + OK 5/6 YEAR + OK"},
		},
	},
	{
		name: "wildcards and key-only levels have children too",
		rules: `
descriptors:
- key: a
  value: x*
  descriptors:
  - key: b
    descriptors:
    - {key: c, value: "*z", rate_limit: {unit: year, requests_per_unit: 5}}
`,
		steps: []step{{
			ask:  "a=x1, b=any, c=yz + a=x2, b=any, c=yz + a=x1, b=any, c=zy",
			want: "OK 4/5 YEAR + OK 4/5 YEAR + OK",
		}},
	},
	{
		name: "unlimited: not sent to the backend, remaining 4294967295, no stats at all",
		rules: `
descriptors:
- {key: a, rate_limit: {unlimited: true, name: all}, shadow_mode: true, quota_mode: true}
- {key: b, rate_limit: {unit: year, requests_per_unit: 0}}
`,
		steps: []step{
			{ask: "a=1 [hits 5]", times: 3, want: "OK 4294967295", counts: "none"},
			{ask: "a=1 [refund]", want: "OK 4294967295", counts: "none"},
			{ask: "a=1 + b", want: "OK 4294967295 + OVER_LIMIT 0/0 YEAR", counts: "b: total_hits 1, over_limit 1"},
		},
	},
}

// Which rule applies to a descriptor.
func TestUpstreamMatching(t *testing.T) {
	prove(t, nil, upstreamMatchingCases)
}

// Rules that take the place of others in a request.
func TestUpstreamReplaces(t *testing.T) {
	prove(t, nil, []sentence{
		{
			name: "a rule whose name is in replaces of a matched one is dropped: no limit, not counted",
			rules: `
descriptors:
- {key: all, rate_limit: {unit: year, requests_per_unit: 5, name: all}}
- {key: vip, rate_limit: {unit: year, requests_per_unit: 50, name: vip, replaces: [{name: all}]}}
`,
			steps: []step{
				{ask: "all + vip", want: "OK + OK 49/50 YEAR vip", counts: "vip: total_hits 1, within_limit 1"},
				{ask: "vip + all", want: "OK 48/50 YEAR vip + OK"}, // order is irrelevant
				{ask: "all", want: "OK 4/5 YEAR all"},
				{ask: "all + other", want: "OK 3/5 YEAR all + OK"},
			},
		},
		{
			name: "unlimited rules replace others, and are not replaced themselves",
			rules: `
descriptors:
- {key: all, rate_limit: {unit: year, requests_per_unit: 0, name: all, replaces: [{name: free}]}}
- {key: staff, rate_limit: {unlimited: true, name: free, replaces: [{name: all}]}}
`,
			steps: []step{
				{ask: "all + staff", want: "OK + OK 4294967295", counts: "none"},
				{ask: "all", want: "OVER_LIMIT 0/0 YEAR all"},
			},
		},
		{
			name: "chains do not protect: a rule that is itself replaced still replaces",
			rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 5, name: a}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 5, name: b, replaces: [{name: a}]}}
- {key: c, rate_limit: {unit: year, requests_per_unit: 5, name: c, replaces: [{name: b}]}}
`,
			steps: []step{
				{ask: "a + b + c", want: "OK + OK + OK 4/5 YEAR c"},
				{ask: "a + c", want: "OK 4/5 YEAR a + OK 3/5 YEAR c"},
			},
		},
		{
			name: "mutual replacement drops both",
			rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 0, name: a, replaces: [{name: b}]}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 0, name: b, replaces: [{name: x}, {name: a}]}}
`,
			steps: []step{{ask: "a + b", want: "OK + OK", counts: "none"}},
		},
		{
			name: "two rules sharing a name are both dropped",
			rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 5, name: n}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 5, name: n}}
- {key: c, rate_limit: {unit: year, requests_per_unit: 5, replaces: [{name: n}]}}
`,
			steps: []step{
				{ask: "a + b", want: "OK 4/5 YEAR n + OK 4/5 YEAR n"},
				{ask: "a + b + c", want: "OK + OK + OK 4/5 YEAR"},
			},
		},
		{
			name: "a request limit has no name and no replaces",
			rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 5, name: a, replaces: [{name: b}]}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 5, name: b}}
`,
			steps: []step{
				{ask: "a [limit 9/YEAR] + b", want: "OK 8/9 YEAR + OK 4/5 YEAR b"},
				{ask: "a + b [limit 9/YEAR]", want: "OK 3/5 YEAR a + OK 7/9 YEAR"},
			},
		},
	})
}

// One counter for all values of a wildcard.
func TestUpstreamShareThreshold(t *testing.T) {
	prove(t, nil, []sentence{
		{
			name: "request values make the counter even where a wildcard or key-only rule matched",
			rules: `
descriptors:
- {key: a, value: x*, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 5}}
`,
			steps: []step{
				{ask: "a=x1 + a=x2 + b=1 + b=2 + b=", want: "OK 4/5 YEAR + OK 4/5 YEAR + OK 4/5 YEAR + OK 4/5 YEAR + OK 4/5 YEAR"},
				{
					ask: "a=x1 + b=2", want: "OK 3/5 YEAR + OK 3/5 YEAR",
					counts: "a_x*: total_hits 1, within_limit 1; b: total_hits 1, within_limit 1",
				},
			},
		},
		{
			name: "share_threshold: all matching values share one counter",
			rules: `
descriptors:
- {key: a, value: files/*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 5}}
`,
			steps: []step{
				{ask: "a=files/1 + a=files/2 + a=files/", want: "OK 4/5 YEAR + OK 3/5 YEAR + OK 2/5 YEAR"},
				{ask: "a=files/* + a=docs", want: "OK 1/5 YEAR + OK", counts: "a_files/*: total_hits 1, within_limit 1"},
			},
		},
		{
			name: "share_threshold works on inner levels, at any level",
			rules: `
descriptors:
- key: a
  value: x*
  share_threshold: true
  descriptors:
  - key: b
    descriptors:
    - {key: c, value: "*z", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 5}}
`,
			steps: []step{
				{ask: "a=x1, b=1, c=z + a=x2, b=1, c=yz", want: "OK 4/5 YEAR + OK 3/5 YEAR"},
				{ask: "a=x3, b=2, c=z", want: "OK 4/5 YEAR", counts: "a_x*.b.c_*z: total_hits 1, within_limit 1"},
			},
		},
		{
			name: "a request limit counts by request values",
			rules: `
descriptors:
- {key: a, value: x*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 5}}
`,
			steps: []step{{ask: "a=x1 + a=x1 [limit 7/YEAR] + a=x2", want: "OK 4/5 YEAR + OK 6/7 YEAR + OK 3/5 YEAR"}},
		},
	})
}
