package service

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

// Decisions by lines of a file count for the rule with limits_from, in each of several domains, also if the first one
// is by an unlimited line.
func TestLimitsFromAreCountedByRule(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": "domain: a\ndescriptors: [{key: x, rate_limit: {unit: day, requests_per_unit: 9}}, {key: y, " +
			"limits_from: list.csv, rate_limit: {unit: day}}]\n",
		"b.yaml":   "domain: b\ndescriptors: [{key: y, limits_from: list.csv, rate_limit: {unit: day}}]\n",
		"list.csv": "free,unlimited\nacme,7\n",
	} {
		testfiles.Write(t, filepath.Join(dir, name), text)
	}
	files, _, err := filerules.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	set := limitertest.Load(t, files)
	store := limitertest.Store(t, memory.Config{})
	registry := metrics.New(metrics.Config{})
	l := limiter.New(limiter.Config{Backend: store, Recorders: []limiter.Recorder{registry}})
	registry.UseRules(set)
	l.UseRules(set)
	for _, domain := range []string{"b", "a"} {
		for _, value := range []string{"free", "acme", "acme"} {
			req := &limiter.Request{
				Domain:      []byte(domain),
				Descriptors: []limiter.Descriptor{{Entries: []rules.Entry{{Key: []byte("y"), Value: []byte(value)}}}},
			}
			if err := l.Check(t.Context(), req, new(limiter.Answer)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var got []string
	registry.ForEachDecisions(func(_, name string, d metrics.Decisions) {
		if d.Admitted > 0 {
			got = append(got, fmt.Sprintf("%s %d", name, d.Admitted))
		}
	})
	slices.Sort(got)
	if want := []string{"a.y_list.csv 3", "b.y_list.csv 3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
