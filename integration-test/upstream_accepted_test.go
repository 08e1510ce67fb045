package integration

import "testing"

// What is accepted on purpose or by accident, and what becomes of it.
var acceptedRules = []sentence{
	{
		name: "value: 5, true, 2001-01-01: their text is used",
		rules: `
descriptors:
- {key: a, value: 5, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: a, value: true, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: a, value: 2001-01-01, rate_limit: {unit: year, requests_per_unit: 3}}
`,
		steps: []step{{ask: "a=5 + a=true + a=2001-01-01 + a=1", want: "OK 0/1 YEAR + OK 1/2 YEAR + OK 2/3 YEAR + OK"}},
	},
	{
		name: "value: null and the empty value are the same as no value",
		rules: `
descriptors:
- {key: a, value: , rate_limit: {unit: year, requests_per_unit: 1}}
- {key: b, value: ~, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: c, value: "", rate_limit: {unit: year, requests_per_unit: 3}}
`,
		steps: []step{{ask: "a=x + b=y + c=z", want: "OK 0/1 YEAR + OK 1/2 YEAR + OK 2/3 YEAR"}},
	},
	{
		name: "requests_per_unit: 0x10 and 1_000 are numbers, 010 is eight, and missing is 0",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 0x10}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 1_000}}
- {key: c, rate_limit: {unit: year, requests_per_unit: 010}}
- {key: d, rate_limit: {unit: year}}
- {key: e, rate_limit: {unit: year, requests_per_unit: 4294967295}}
`,
		steps: []step{{
			ask:  "a + b + c + d + e",
			want: "OK 15/16 YEAR + OK 999/1000 YEAR + OK 7/8 YEAR + OVER_LIMIT 0/0 YEAR + OK 4294967294/4294967295 YEAR",
		}},
	},
	{
		name: "YAML 1.1: yes, no, on, off, y and n are booleans",
		rules: `
descriptors:
- {key: a, shadow_mode: yes, rate_limit: {unit: year}}
- {key: b, shadow_mode: On, rate_limit: {unit: year}}
- {key: c, shadow_mode: y, rate_limit: {unit: year}}
- {key: d, shadow_mode: no, rate_limit: {unit: year}}
- {key: e, shadow_mode: OFF, rate_limit: {unit: year}}
- {key: f, shadow_mode: n, rate_limit: {unit: year}}
`,
		steps: []step{
			{ask: "a + b + c", want: "OK 0/0 YEAR + OK 0/0 YEAR + OK 0/0 YEAR"},
			{ask: "d + e + f", want: "OVER_LIMIT 0/0 YEAR + OVER_LIMIT 0/0 YEAR + OVER_LIMIT 0/0 YEAR"},
		},
	},
	{
		name: "duplicate keys in a mapping: last one wins",
		rules: `
descriptors:
- {key: lost}
descriptors:
- {key: b, key: a, rate_limit: {unit: decade, unit: year, requests_per_unit: 1, requests_per_unit: 2}}
`,
		steps: []step{{ask: "a + b", want: "OK 1/2 YEAR + OK"}},
	},
	{
		name: "anchors work",
		rules: `
descriptors:
- {key: a, rate_limit: &yearly {unit: year, requests_per_unit: 4}}
- {key: b, rate_limit: *yearly}
- {key: c, rate_limit: {<<: *yearly, requests_per_unit: 5}}
`,
		steps: []step{{ask: "a + b + c", want: "OK 3/4 YEAR + OK 3/4 YEAR + OK 4/5 YEAR"}},
	},
	{
		name: "keys are not checked per level: unit at the root is accepted and ignored",
		rules: `
unit: day
descriptors:
- {key: a, requests_per_unit: 9, rate_limit: {unit: year, requests_per_unit: 4, shadow_mode: true}}
`,
		steps: []step{
			{ask: "a [hits 4]", want: "OK 0/4 YEAR"},
			{ask: "a", want: "OVER_LIMIT 0/4 YEAR"}, // shadow_mode stands next to rate_limit, not inside
		},
	},
	{
		name: "unlimited with a nonsense unit is accepted, requests_per_unit is ignored",
		rules: `
descriptors:
- {key: a, rate_limit: {unlimited: true, unit: decade, requests_per_unit: 1}}
- {key: b, rate_limit: {unlimited: true, unit: unknown}}
`,
		steps: []step{{ask: "a + b", times: 3, want: "OK 4294967295 + OK 4294967295"}},
	},
	{
		name: "units are second, minute, hour, day, week, month and year, in any letter case",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: second, requests_per_unit: 9}}
- {key: b, rate_limit: {unit: Minute, requests_per_unit: 9}}
- {key: c, rate_limit: {unit: HOUR, requests_per_unit: 9}}
- {key: d, rate_limit: {unit: dAy, requests_per_unit: 9}}
- {key: e, rate_limit: {unit: week, requests_per_unit: 9}}
- {key: f, rate_limit: {unit: month, requests_per_unit: 9}}
- {key: g, rate_limit: {unit: yeaR, requests_per_unit: 9}}
`,
		steps: []step{{
			ask:  "a + b + c + d + e + f + g", // a first hit leaves eight, whatever the clock says
			want: "OK 8/9 SECOND + OK 8/9 MINUTE + OK 8/9 HOUR + OK 8/9 DAY + OK 8/9 WEEK + OK 8/9 MONTH + OK 8/9 YEAR",
		}},
	},
	{
		name:  "a domain without descriptors is known",
		rules: "",
		steps: []step{{ask: "a", want: "OK", counts: "none"}},
	},
	{
		name: "replaces naming nothing is accepted",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 4, replaces: [{name: nobody}]}}
`,
		steps: []step{{ask: "a", want: "OK 3/4 YEAR"}},
	},
	{
		name: "a rate_limit that is null is no limit at this level",
		rules: `
descriptors:
- key: a
  rate_limit:
  descriptors:
  - {key: b, rate_limit: {unit: year, requests_per_unit: 4}}
`,
		steps: []step{{ask: "a=1 + a=1, b=2", want: "OK + OK 3/4 YEAR"}},
	},
	{
		name: "flags on a descriptor without rate_limit do nothing: they are not inherited by children",
		rules: `
descriptors:
- key: a
  shadow_mode: true
  quota_mode: true
  detailed_metric: true
  metadata: {tier: gold}
  descriptors:
  - {key: b, rate_limit: {unit: year, requests_per_unit: 0}}
- {key: free, rate_limit: {unit: year, requests_per_unit: 9}, quota_mode: true}
`,
		steps: []step{
			{ask: "a=1, b=2", want: "OVER_LIMIT 0/0 YEAR", counts: "a.b: total_hits 1, over_limit 1"},
			{ask: "a=1, b=2 + free", want: "OVER_LIMIT 0/0 YEAR + OK 8/9 YEAR"},
		},
	},
	{
		name: "after a changed requests_per_unit the used amount carries over",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 10}}
`,
		steps: []step{
			{ask: "a [hits 6]", want: "OK 4/10 YEAR"},
			{
				put:  "descriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: 20}}\n",
				ask:  "a",
				want: "OK 13/20 YEAR",
			},
			{
				put:  "descriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: 5}}\n",
				ask:  "a",
				want: "OVER_LIMIT 0/5 YEAR",
			},
		},
	},
	{
		name: "differs: {a, b} and {a_b} no longer collide at load",
		rules: `
descriptors:
- {key: a, value: b, rate_limit: {unit: year, requests_per_unit: 1}}
- {key: a_b, rate_limit: {unit: year, requests_per_unit: 2}}
`,
		steps: []step{{ask: "a=b + a_b=c", want: "OK 0/1 YEAR + OK 1/2 YEAR"}},
	},
	{
		name: "differs: unit_multiplier exists",
		rules: `
descriptors:
- {key: a, rate_limit: {unit: year, unit_multiplier: 2, requests_per_unit: 3}}
- {key: b, rate_limit: {unit: day, unit_multiplier: 1000, requests_per_unit: 3}}
`,
		steps: []step{
			{ask: "a + b", want: "OK 2/3 2 YEAR + OK 2/3 1000 DAY"},
			{ask: "a [hits 2] + b [hits 3]", want: "OK 0/3 2 YEAR + OVER_LIMIT 0/3 1000 DAY"},
			// the first shares the rule's counter
			{ask: "a [limit 9/2 YEAR] + a [limit 9/3 YEAR]", want: "OK 5/9 2 YEAR + OK 8/9 3 YEAR"},
		},
	},
}

func TestUpstreamAcceptedRules(t *testing.T) {
	prove(t, nil, acceptedRules)
}

func TestUpstreamMergedDomains(t *testing.T) {
	prove(t, []string{"MERGE_DOMAIN_CONFIG=true"}, []sentence{
		{
			name: "MERGE_DOMAIN_CONFIG: top-level descriptors of the same domain are joined",
			rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 1}}
`,
			more: `
descriptors:
- {key: b, rate_limit: {unit: year, requests_per_unit: 2, replaces: [{name: c}]}}
- {key: c, rate_limit: {unit: year, requests_per_unit: 3, name: c}}
`,
			steps: []step{
				{ask: "a + b", want: "OK 0/1 YEAR + OK 1/2 YEAR"},
				{ask: "b + c", want: "OK 0/2 YEAR + OK"},
			},
		},
	})

	rules := newRuleDir(t)
	rules.put(t, "a.yaml", "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: 9}}\n")
	u := startWith(t, rules, "MERGE_DOMAIN_CONFIG=true")
	t.Run("a composite key in both files is a duplicate error even if both only carry children", func(t *testing.T) {
		u.reload(t, func() {
			u.rules.put(t, "b.yaml", "domain: d\ndescriptors:\n- {key: b, descriptors: [{key: c}]}\n")
		}, "config_load_success")
		u.reload(t, func() {
			u.rules.put(t, "c.yaml", "domain: d\ndescriptors:\n- {key: b, descriptors: [{key: d}]}\n")
		}, "config_load_error")
		u.runStep(t, "grpc", "d", 1, step{ask: "a", want: "OK 8/9 YEAR"})
	})
}
