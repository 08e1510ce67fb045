//go:build !race

package rules_test

import (
	"testing"

	"ratelimit/src/rules"
)

// A regular expression takes its working memory from a pool, which the race detector empties at random.
func TestMatchAllocates(t *testing.T) {
	d, _ := loaded(t, matchRules)
	var scratch rules.SearchScratch
	var key []byte
	format := rules.KeyFormat{EscapeKeys: true}
	for _, request := range []string{
		"ip=10.1.1.2", "ip=2001:db8::1", "ip=10.1.1.2:80", "ip=fe80::1%eth0", "ip=no address",
		"path=/b/v1/c", "path=/a", "net=10.1.2.3,path=xx",
	} {
		list := parseEntries(request)
		if n := testing.AllocsPerRun(100, func() {
			if m := d.FindRule(list, &scratch); m != nil {
				r := m.Limits[len(m.Limits)-1]
				key, _ = format.AppendKey(key[:0], d, r, list)
				key = r.AppendMetricName(key[:0], list, '.')
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", request, n)
		}
	}
}
