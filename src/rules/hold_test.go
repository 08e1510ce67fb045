package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

// holdRules are domains in which requests name holds: a tree, an ordered list, and a tree of limits without holds.
var holdRules = []filerules.File{
	{Name: "tree.yaml", Data: []byte(`
domain: tree
descriptors:
- key: user
  rate_limit: {algorithm: concurrency, requests_per_unit: 4, hold: 30s, hold_id: id}
  descriptors:
  - {key: path, rate_limit: {unit: day, requests_per_unit: 9}}
- key: team
  charge: path
  rate_limits:
  - {unit: day, requests_per_unit: 9, hold: 10m, hold_id: id, unsettled: release}
  - {unit: second, requests_per_unit: 5}
  descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 3}, detailed_metric: true}
  - {key: none}
  - {key: i*}
`)},
	{Name: "list.yaml", Data: []byte(`
domain: list
rules:
- {match: {user: "*"}, per: [user], rate_limit: {algorithm: concurrency, requests_per_unit: 4, hold: 30s, hold_id: id}}
- {match: {team: "*"}, per: [team], rate_limit: {unit: day, requests_per_unit: 9, hold: 10m, hold_id: call}}
- {match: {}, rate_limit: {unit: day, requests_per_unit: 9}}
`)},
	{Name: "words.yaml", Data: []byte("schema: {user: {limits: [1, 2, 3]}}")},
}

// TestHoldOf checks which rule a request finds, where it counts, and what it does with which hold.
func TestHoldOf(t *testing.T) {
	t.Parallel()
	set := limitertest.Load(t, holdRules)
	for _, test := range []struct{ domain, request, want string }{
		{"tree", "user=al", "error: rule tree.user: the entry id, which names the hold, is missing or empty: send id=<an " +
			"id of the call>"},
		{"tree", "user=al,id=7", `tree.user: take "7"; tree.user tree_user_al_`},
		{"tree", "user=al,id=7,hold=settle", `tree.user: settle "7"; tree.user tree_user_al_`},
		{"tree", "user=al,id=7,hold=release", `tree.user: release "7"; tree.user tree_user_al_`},
		{
			"tree", "user=al,id=7,hold=keep",
			"error: rule tree.user: hold=keep is unknown: send hold=settle or hold=release, or no such entry to take a hold",
		},
		{
			"tree", "user=al,id=7,hold=settel",
			"error: rule tree.user: hold=settel is unknown: did you mean hold=settle? send hold=settle or hold=release, or no " +
				"such entry to take a hold",
		},
		{"tree", "user=al,id=7,hold=settle,x=y", "no rule"},
		{"tree", "user=al,id=7,x=y", "no rule"},
		{"tree", "user=al,id=", "error: rule tree.user: the entry id, which names the hold, is missing or empty: send " +
			"id=<an id of the call>"},
		{
			"tree", "user=al,id=,hold=settle",
			"error: rule tree.user: the entry id, which names the hold, is missing or empty: send id=<an id of the call>",
		},
		{
			"tree", "user=al,hold=settle",
			"error: rule tree.user: the entry id, which names the hold, is missing or empty: send id=<an id of the call>",
		},
		{
			"tree", "user=al,hold=settel",
			"error: rule tree.user: hold=settel is unknown: did you mean hold=settle? send hold=settle or hold=release, or no " +
				"such entry to take a hold",
		},
		{
			"tree", "user=al,hold=settle,id=7",
			"error: rule tree.user: the entry id, which names the hold, comes after the entry hold: send id=<an id of the " +
				"call> before it",
		},
		{"tree", "user=al,hold=settle,x=y", "no rule"},
		{"tree", "user=al,hold=settle,id=7,x=y", "no rule"},
		{"tree", "id=7", "no rule"},
		{"tree", "user=al,path=x", `tree.user.path: take ""; tree.user.path tree_user_al_path_x_`},
		{"tree", "user=al,path=x,id=7", "no rule"},
		{"tree", "team=a", `tree.team: take ""; tree.team tree_team_a_; tree.team.2 tree_team_a_`},
		{"tree", "team=a,id=7", `tree.team: take "7"; tree.team tree_team_a_; tree.team.2 tree_team_a_`},
		{
			"tree", "team=a,user=al,id=7,hold=settle",
			`tree.team.user: settle "7"; tree.team tree_team_a_; tree.team.2 tree_team_a_; tree.team_a.user_al tree_team_a_user_al_`,
		},
		{"tree", "team=a,id=", `tree.team: take ""; tree.team tree_team_a_; tree.team.2 tree_team_a_`},
		{
			"tree", "team=a,hold=release",
			"error: rule tree.team: the entry id, which names the hold, is missing or empty: send id=<an id of the call>",
		},
		{"tree", "team=a,hold=i,x=y", "no rule"},
		{"tree", "team=a,none=,id=7", `tree.team.none: take "7"; tree.team tree_team_a_; tree.team.2 tree_team_a_`},
		{"tree", "team=a,ix=7", `tree.team.i*: take ""; tree.team tree_team_a_; tree.team.2 tree_team_a_`},
		{"list", "user=al", "error: rule list.user_*: the entry id, which names the hold, is missing or empty: send id=<an " +
			"id of the call>"},
		{"list", "id=7,user=al", `list.user_*: take "7"; list.user_* list_:user_*_:user_al_:4/concurrency_`},
		{"list", "hold=release,id=7,user=al", `list.user_*: release "7"; list.user_* list_:user_*_:user_al_:4/concurrency_`},
		{
			"list", "hold=keep,id=7,user=al",
			"error: rule list.user_*: hold=keep is unknown: send hold=settle or hold=release, or no such entry to take a hold",
		},
		{"list", "hold=,id=7,user=al", "error: rule list.user_*: hold= is unknown: send hold=settle or hold=release, or no " +
			"such entry to take a hold"},
		{"list", "team=a,id=7", `list.team_*: take ""; list.team_* list_:team_*_:team_a_:9/24h_fixed_window_held_`},
		{
			"list", "team=a,call=7,hold=settle",
			`list.team_*: settle "7"; list.team_* list_:team_*_:team_a_:9/24h_fixed_window_held_`,
		},
		{"list", "team=a,hold=settle", "error: rule list.team_*: the entry call, which names the hold, is missing or " +
			"empty: send call=<an id of the call>"},
		{"list", "id=7,hold=keep", `list.default: take ""; list.default list_:::9/24h_fixed_window_`},
		{"words", "user=id", `words.user: take ""; words.user words_user_`},
	} {
		if got := holdText(set.Domain([]byte(test.domain)), test.request); got != test.want {
			t.Errorf("%s: %s\ngot  %s\nwant %s", test.domain, test.request, got, test.want)
		}
	}
}

// holdText tells what FindRule, HoldOf, AppendMetricName and AppendKey say about a request.
func holdText(d *rules.Domain, request string) string {
	entries := parseEntries(request)
	r := d.FindRule(entries, &rules.SearchScratch{})
	if explained := explain(d, entries).Found; explained != r {
		return fmt.Sprintf("FindRule finds %v, Explain %v", r, explained)
	}
	if r == nil {
		return "no rule"
	}
	name, action, err := r.HoldOf(entries)
	if err != nil {
		return "error: " + err.Error()
	}
	text := fmt.Sprintf("%s: %v %q", r.FullName, action, name)
	for _, limit := range r.Limits {
		key, _ := (&rules.KeyFormat{}).AppendKey(nil, d, limit, entries)
		text += fmt.Sprintf("; %s %s", limit.AppendMetricName(nil, entries, '.'), key)
	}
	return text
}

// TestExplainHolds checks the record of a search whose last entries are about a hold.
func TestExplainHolds(t *testing.T) {
	t.Parallel()
	set := limitertest.Load(t, holdRules)
	for request, want := range map[string]string{
		"user=al,id=7,hold=settle":      "user key, id hold_id, hold hold: rule",
		"team=a,user=al,id=7":           "team key, user key, id hold_id: rule",
		"user=al,id=7,hold=keep":        "user key, id hold_id, hold hold: rule",
		"user=al,id=7,hold=settle,x=y":  "user key: wrong_hold id",
		"user=al,id=":                   "user key, id hold_id: rule",
		"user=al,hold=settle":           "user key, hold hold: rule",
		"user=al,hold=settle,x=y":       "user key: wrong_hold id",
		"team=a,hold=settle,id=7":       "team key, hold hold, id hold_id: rule",
		"user=al,path=x,id=7":           "user key, path key: rules_end_above",
		"user=al,x=7":                   "user key, none: no_such_key",
		"user=al,idd=7":                 "user key, none: no_such_key, meant id",
		"team=a,user=al,x=7":            "team key, user key: rules_end_above id",
		"team=a,i=7":                    "team key, i wildcard: rule",
		"team=a,user=al,id=7,hold=keep": "team key, user key, id hold_id, hold hold: rule",
	} {
		search, got := explain(set.Domain([]byte("tree")), parseEntries(request)), ""
		for i, s := range search.Steps {
			if i > 0 {
				got += ", "
			}
			if s.TakenIndex < 0 {
				got += "none"
			} else {
				got += fmt.Sprintf("%s %s", s.Entry.Key, s.Candidates[s.TakenIndex].MatchKind)
			}
		}
		if got += ": " + string(search.EndReason); search.HoldIDKey != "" {
			got += " " + search.HoldIDKey
		}
		if last := search.Steps[len(search.Steps)-1]; last.SuggestedText != "" {
			got += ", meant " + last.SuggestedText
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", request, got, want)
		}
	}
}

// TestWithoutHold checks which entries operators see of a request: not those that name or settle a hold.
func TestWithoutHold(t *testing.T) {
	t.Parallel()
	set := limitertest.Load(t, holdRules)
	for _, test := range []struct{ domain, request, want string }{
		{"tree", "user=al,id=7,hold=settle", "user=al"},
		{"tree", "team=a,id=7", "team=a"},
		{"tree", "user=al,path=x", "user=al path=x"},
		{"list", "hold=release,id=7,user=al,x=y", "user=al x=y"},
		{"list", "x=y,id=7,hold=settle", "x=y id=7 hold=settle"},
	} {
		entries := parseEntries(test.request)
		r := set.Domain([]byte(test.domain)).FindRule(entries, &rules.SearchScratch{})
		var got []string
		for _, e := range r.WithoutHold(entries) {
			got = append(got, string(e.Key)+"="+string(e.Value))
		}
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%s: %s: got %s, want %s", test.domain, test.request, text, test.want)
		}
	}
}
