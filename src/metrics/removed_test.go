//go:build !race

package metrics

import (
	"fmt"
	"testing"

	"ratelimit/src/rules"
)

// Rules of ever new names leave the memory where it was, whether or not statistics
// are read.
func TestRemovedRulesAreBounded(t *testing.T) {
	var sets []*rules.Set
	for i := range 25 {
		text := "domain: d\ndescriptors:\n"
		for j := range 1000 {
			text += fmt.Sprintf("- {key: k%d_%d, rate_limit: {unit: day, requests_per_unit: 10}}\n", i, j)
		}
		sets = append(sets, load(t, text))
	}
	for _, flush := range []bool{false, true} {
		r := New(Config{})
		r.UseRules(load(t, "domain: d"))
		for _, set := range sets {
			r.UseRules(set)
			for j := range 1000 {
				hit(r, set, j, "")
			}
			if flush {
				r.FlushStats()
			}
		}
		if n := len(r.ruleStats.all) - 1001; n != minUnusedBound { // less the rules and the domain in force
			t.Errorf("flush %t: %d removed rules are kept, want %d", flush, n, minUnusedBound)
		}
		if n := len(r.namedHits.unused); n > minUnusedBound+1000 {
			t.Errorf("flush %t: %d unused names are kept", flush, n)
		}
		lost := value(r, "ratelimit.stats.hits_lost")
		if flush && lost > 0 || !flush && lost == 0 {
			t.Errorf("flush %t: %d hits were lost", flush, lost)
		}
	}
}
