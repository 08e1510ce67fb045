//go:build !race

package asrules

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"ratelimit/src/overrides"
	"ratelimit/src/rules"
)

// randomListRule returns the text of a rule of an ordered list.
func randomListRule(r *rand.Rand) string {
	var conditions, per []string
	for _, key := range keys {
		if r.IntN(3) == 0 {
			pattern := append([]string{"*", "x*", "*y", "x*y"}, values...)[r.IntN(4+len(values))]
			conditions = append(conditions, fmt.Sprintf("%s: %q", key, pattern))
		}
	}
	for _, i := range r.Perm(len(keys)) {
		if r.IntN(2) == 0 {
			per = append(per, keys[i])
		}
	}
	text := "  - match: {" + strings.Join(conditions, ", ") + "}\n    per: [" + strings.Join(per, ", ") + "]\n"
	limit := fmt.Sprintf("{unit: minute, requests_per_unit: %d}", 1+r.IntN(90))
	if r.IntN(4) == 0 {
		text += "    rate_limits: [" + limit + ", {name: day, unit: day, requests_per_unit: 500}]\n"
	} else {
		text += "    rate_limit: " + limit + "\n"
	}
	if r.IntN(4) == 0 {
		text += "    shadow_mode: true\n"
	}
	return text
}

// listLimitsOf returns the limits of the rule that decides about a request, and those of canaries.
func listLimitsOf(set *rules.Set, entries []rules.Entry) (decides, canaries string) {
	var s rules.SearchScratch
	s.Begin(context.Background())
	m := set.Domain([]byte("shop")).FindRule(entries, &s)
	for _, m := range append(s.Canaries, m) {
		text := ""
		if m == nil {
			continue
		}
		for _, r := range m.Limits {
			text += ", " + r.LimitInWords()
		}
		if m.ShadowMode {
			canaries += text + "; "
		} else {
			decides += text
		}
	}
	return decides, canaries
}

// The rules that Write writes of an ordered list have the same limits as the file with the overrides.
func TestSameLimitsOfLists(t *testing.T) {
	t.Parallel()
	const wanted = 2000
	compared, complete, differing, differingCanaries := 0, 0, 0, 0
	for seed := uint64(0); compared < wanted; seed++ {
		if seed == 40*wanted {
			t.Fatalf("only %d of %d cases could be compared", compared, seed)
		}
		r := rand.New(rand.NewPCG(seed, 7))
		file := "domain: shop\nrules:\n"
		for range 1 + r.IntN(4) {
			file += randomListRule(r)
		}
		set, err := load(file)
		if err != nil {
			continue // a rule is unreachable
		}
		var list []overrides.Override
		for range 1 + r.IntN(3) {
			o := override(randomSubject(r), []string{"x10", "x0.5", "ban", "777", "888/hour"}[r.IntN(5)])
			switch all := set.Rules(); r.IntN(6) {
			case 0:
				o.Subject = "*"
			case 1:
				o.Subject = keys[r.IntN(2)] + "=" + []string{`"*"`, `"x*"`, "*"}[r.IntN(3)]
			case 2, 3:
				o.Rule = all[r.IntN(len(all))].FullName
			}
			list = append(list, o)
		}
		with := changed(t, set, list...)
		exported := export(t, with, list)
		again, err := load(exported)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s\noverrides: %+v\n%s", seed, err, file, list, exported)
		}
		notWritten := strings.Count(exported, "# not written")
		inShadowMode := strings.Count(exported, "is in shadow mode, and would count these requests, too")
		if notWritten > inShadowMode {
			continue
		}
		compared++
		if notWritten == 0 {
			complete++
		}
		for range 50 {
			var entries []rules.Entry
			for range 1 + r.IntN(3) {
				value := append([]string{"xq", "q", "", "xqy"}, values...)[r.IntN(4+len(values))]
				key := append([]string{"other"}, keys...)[r.IntN(3)]
				entries = append(entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
			}
			got, gotCanaries := listLimitsOf(again, entries)
			want, wantCanaries := listLimitsOf(with, entries)
			before, canariesBefore := listLimitsOf(set, entries)
			if want != before {
				differing++
			}
			if notWritten > 0 {
				wantCanaries, gotCanaries = "", ""
			} else if wantCanaries != canariesBefore {
				differingCanaries++
			}
			if got != want || gotCanaries != wantCanaries {
				t.Fatalf("seed %d: %s has %s and canaries %s, want %s and %s\nfile:\n%s\noverrides: %+v\nexported:\n%s", seed, entries,
					got, gotCanaries, want, wantCanaries, file, list, exported)
			}
		}
	}
	t.Logf("%d of %d cases are complete; %d requests and %d canaries differ", complete, compared, differing, differingCanaries)
	if complete < wanted/2 || differing < wanted || differingCanaries < wanted/10 {
		t.Errorf("too few differ: %d complete, %d requests, %d canaries", complete, differing, differingCanaries)
	}
}
