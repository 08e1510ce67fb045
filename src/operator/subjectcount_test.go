package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/overrides"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

const countedRules = `
domain: api
descriptors:
  - key: user
    charge: path
    rate_limits: [{unit: day, requests_per_unit: 9}, {name: fast, unit: minute, requests_per_unit: 5, algorithm: gcra}]
    descriptors:
      - key: action
        rate_limit: {unit: day, requests_per_unit: 9}
---
domain: list
rules:
  - match: {path: /a*}
    per: [user]
    rate_limits: [{unit: day, requests_per_unit: 9}, {unit: hour, requests_per_unit: 5}]
`

// newLimitEditor returns an editor of limits over a store, with the rules of countedRules.
func newLimitEditor(tb testing.TB, store backend.Backend, escapeKeys bool) *LimitEditor {
	tb.Helper()
	var files []filerules.File
	for i, text := range strings.Split(countedRules, "---\n") {
		files = append(files, filerules.File{Name: fmt.Sprint(i, ".yaml"), Data: []byte(text)})
	}
	set := limitertest.Load(tb, files)
	kept, _, err := overrides.OpenFile("")
	if err != nil {
		tb.Fatal(err)
	}
	l := limiter.New(limiter.Config{Backend: store, EscapeKeys: escapeKeys})
	e := &LimitEditor{
		Counters: &Editor{Limiter: l, Backend: store},
		Registry: overrides.New(overrides.Config{Store: kept, MaxOverrides: 10}),
		OnChange: func(*LimitReport, Client, error) {},
	}
	l.UseRules(e.Registry.Over(set))
	return e
}

func (e *LimitEditor) hit(tb testing.TB, domain, descriptor string) {
	tb.Helper()
	entries, err := callertext.ParseDescriptor(descriptor)
	if err != nil {
		tb.Fatal(err)
	}
	req := limiter.Request{Domain: []byte(domain), Descriptors: []limiter.Descriptor{{Entries: entries}}}
	if err := e.Counters.Limiter.Check(tb.Context(), &req, new(limiter.Answer)); err != nil {
		tb.Fatal(err)
	}
}

func dryRunOfBan(domain, rule, subject string) LimitChange {
	return LimitChange{
		Action: overrides.ActionSet, Domain: domain, Rule: rule, Subject: subject, Limit: "ban", DryRun: true,
	}
}

// dryRun returns how many subjects a ban concerns, and the warnings.
func (e *LimitEditor) dryRun(tb testing.TB, domain, rule, subject string) (n int, report *LimitReport) {
	tb.Helper()
	report, err := e.Change(tb.Context(), dryRunOfBan(domain, rule, subject), Client{})
	if err != nil {
		tb.Fatal(err)
	}
	if report.Subjects == nil {
		return -1, report
	}
	return *report.Subjects, report
}

// A dry run with a pattern says how many subjects have a counter, in each form of keys. A subject counts once, however
// many limits it has.
func TestSubjectsOfPatterns(t *testing.T) {
	t.Parallel()
	for _, escapeKeys := range []bool{false, true} {
		store := limitertest.Store(t, memory.Config{MaxBytes: memory.MinBytes, KeepNames: true})
		e := newLimitEditor(t, store, escapeKeys)
		if n, _ := e.dryRun(t, "api", "", "user=al*"); n != 0 {
			t.Errorf("%d subjects before the first request", n)
		}
		for _, descriptor := range []string{
			"user=alex", "user=alex", "user=alice,action=pay", "user=alice,action=buy", "user=bob", "user=albert,action=pay",
		} {
			e.hit(t, "api", descriptor)
		}
		for _, user := range []string{"al", "alex", "bob"} {
			e.hit(t, "list", "path=/a1,user="+user)
			e.hit(t, "list", "path=/a2,user="+user)
		}
		for _, tt := range []struct {
			domain, rule, subject string
			want                  int
		}{
			{"api", "", "user=al*", 6},
			{"api", "user", "user=al*", 3},
			{"api", "user.fast", "user=al*", 3},
			{"api", "user.action", "user=al*", 3},
			{"api", "", "user=alice,*", 3},
			{"api", "user", "user=alice,*", 1},
			{"api", "", "user=alice,action=p*", 1},
			{"api", "", "user=nobody*", 0},
			{"api", "", "*", 7},
			{"api", "", "user=alex", -1},
			{"list", "", "user=al*", 2},
			{"list", "", "*", 3},
		} {
			n, report := e.dryRun(t, tt.domain, tt.rule, tt.subject)
			if n != tt.want || report.SubjectsAtLeast || len(report.Warnings) > 0 {
				t.Errorf("escaped %t: %s %s %s: %d subjects, want %d; %+v", escapeKeys, tt.domain, tt.rule, tt.subject, n, tt.want,
					report)
			}
		}
	}
}

// named is a store that finds counters with any names.
type named struct {
	backend.Backend
	find func(ctx context.Context, found func(names [][]byte)) error
}

func (*named) SetCounts(context.Context, *backend.Batch) error { return nil }

func (n *named) ResetPrefixes(ctx context.Context, _ []backend.KeyPrefix, dryRun bool, found func([][]byte)) error {
	if !dryRun {
		return errors.New("a dry run resets counters")
	}
	return n.find(ctx, found)
}

// A search ends at its bounds, and says so. What cannot be counted is a warning.
func TestBoundsOfSubjectSearches(t *testing.T) {
	t.Parallel()
	each := func(i int) [][]byte { return [][]byte{fmt.Appendf(nil, "api_user_al%d_1767225600", i)} }
	for _, tt := range []struct {
		name    string
		find    func(ctx context.Context, found func([][]byte)) error
		want    int
		isLeast bool
		warning string
	}{
		{"twice the same", func(_ context.Context, found func([][]byte)) error {
			found(each(1))
			found(each(1))
			return nil
		}, 1, false, ""},
		{"endless", func(ctx context.Context, found func([][]byte)) error {
			for i := 0; ctx.Err() == nil; i++ {
				found(each(i))
			}
			return ctx.Err()
		}, maxSubjects, true, ""},
		{"slow", func(ctx context.Context, found func([][]byte)) error {
			found(each(1))
			<-ctx.Done()
			return ctx.Err()
		}, 1, true, ""},
		{
			"failing", func(context.Context, func([][]byte)) error { return errors.New("no right to SCAN") }, -1, false,
			"it is not known how many subjects have a counter: no right to SCAN",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				n, report := newLimitEditor(t, &named{find: tt.find}, false).dryRun(t, "api", "", "user=al*")
				if n != tt.want || report.SubjectsAtLeast != tt.isLeast || strings.Join(report.Warnings, "") != tt.warning {
					t.Errorf("%d subjects, %+v", n, report)
				}
				if d := time.Since(begun); d > subjectSearchTime {
					t.Errorf("it took %v", d)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		e := newLimitEditor(t, &named{find: func(ctx context.Context, _ func([][]byte)) error {
			<-ctx.Done()
			return nil
		}}, false)
		for range maxSubjectSearches {
			go func() { _, _ = e.Change(t.Context(), dryRunOfBan("api", "", "user=al*"), Client{}) }()
		}
		synctest.Wait()
		n, report := e.dryRun(t, "api", "", "user=al*")
		if n != -1 || !strings.Contains(fmt.Sprint(report.Warnings), "try again") {
			t.Errorf("%d subjects, %+v", n, report)
		}
	})
}
