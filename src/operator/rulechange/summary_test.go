package rulechange_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/src/operator/rulechange"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/reload"
	"ratelimit/testbed/testfiles"
)

// loader loads versions of rules one after the other, as a service does.
type loader struct {
	dir string
	reload.Loader
}

func newLoader(t testing.TB) *loader {
	return &loader{t.TempDir(), reload.Loader{Format: filerules.Format()}}
}

// load writes files, of which an empty one is removed, and returns the rules in all of them.
func (l *loader) load(t testing.TB, files map[string]string) *rules.Set {
	t.Helper()
	for name, text := range files {
		testfiles.Write(t, filepath.Join(l.dir, name), text)
		if text == "" {
			_ = os.Remove(filepath.Join(l.dir, name))
		}
	}
	parts, _, err := filerules.Read(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	var out reload.Result
	l.Load(parts, nil, &out)
	if out.Err != nil {
		t.Fatal(out.Err)
	}
	return out.Set
}

func TestSummary(t *testing.T) {
	t.Parallel()
	const user, ip = "- {key: user, rate_limit: {unit: minute, requests_per_unit: %d}}\n",
		"- {key: ip, value: \"%s\", rate_limit: {unit: second, requests_per_unit: 9}}\n"
	rule := func(format string, arg any) string { return fmt.Sprintf(format, arg) }
	shop := func(text ...string) map[string]string {
		return map[string]string{"shop.yaml": "domain: shop\ndescriptors:\n" + strings.Join(text, "")}
	}
	banned := "- {key: user, values_from: banned.txt, rate_limit: {unit: day, requests_per_unit: 0}}\n"
	tenants := "- {key: tenant, limits_from: tenants.csv, rate_limit: {unit: day}}\n"
	l := newLoader(t)
	before := l.load(t, shop(rule(user, 10), rule(ip, "a*")))
	var many strings.Builder
	for i := range 8 {
		many.WriteString(rule(ip, fmt.Sprintf("b%d", i)))
	}
	for _, tt := range []struct {
		files map[string]string
		want  string
	}{
		{shop("# nothing but a comment\n", rule(user, 10), rule(ip, "a*")), ""},
		{
			shop(rule(user, 5), rule(ip, "a*")),
			"1 rule tightened: shop.user (10 per minute -> 5 per minute)",
		},
		{
			shop(rule(user, 20), rule(ip, "c*")),
			"1 rule added: shop.ip_c* (9 per second); 1 rule removed: shop.ip_a* (9 per second); " +
				"1 rule loosened: shop.user (5 per minute -> 20 per minute)",
		},
		{shop(rule(user, 20), rule(ip, "c*"), rule(ip, "d*")), "1 rule added: shop.ip_d* (9 per second)"},
		{shop(rule(user, 20), rule(ip, "d*"), rule(ip, "c*")), "1 rule moved: shop.ip_d* (9 per second)"},
		{
			map[string]string{"other.yaml": "domain: other\ndescriptors:\n" + rule(user, 1)},
			"1 rule added: other.user (1 per minute)",
		},
		{map[string]string{"other.yaml": ""}, "1 rule removed: other.user (1 per minute)"},
		{
			shop(rule(user, 20), many.String()),
			"8 rules added: shop.ip_b0 (9 per second), shop.ip_b1 (9 per second), shop.ip_b2 (9 per second), " +
				"shop.ip_b3 (9 per second), shop.ip_b4 (9 per second) and 3 more; 2 rules removed: " +
				"shop.ip_d* (9 per second), shop.ip_c* (9 per second)",
		},
		{
			map[string]string{
				"shop.yaml": "domain: shop\ndescriptors:\n" + banned + tenants, "banned.txt": "a\nb\n", "tenants.csv": "a,1\nb,2\n",
			},
			"2 rules added: shop.user_banned.txt (0 per day), shop.tenant_tenants.csv (as in tenants.csv per day); " +
				"9 rules removed: shop.user (20 per minute), shop.ip_b0 (9 per second), shop.ip_b1 (9 per second), " +
				"shop.ip_b2 (9 per second), shop.ip_b3 (9 per second) and 4 more",
		},
		{
			map[string]string{"banned.txt": "a\nc\nd\n", "tenants.csv": "limit,requests\na,2\nb,1\n"},
			`DIR/banned.txt: 2 added ("c", "d"), 1 removed ("b"); DIR/tenants.csv: 1 raised ("a" 1 -> 2), 1 lowered ("b" 2 -> 1)`,
		},
		{
			map[string]string{
				"other.yaml": "domain: other\ndescriptors:\n" + banned, "banned.txt": "a\n",
				"shop.yaml": "domain: shop\ndescriptors:\n" + banned + strings.Replace(tenants, "day", "hour", 1),
			},
			"1 rule added: other.user_banned.txt (0 per day); 1 rule loosened: shop.tenant_tenants.csv " +
				"(as in tenants.csv per day -> as in tenants.csv per hour); DIR/banned.txt: 2 removed (\"c\", \"d\")",
		},
		{
			map[string]string{"shop.yaml": "domain: shop\ndescriptors:\n- {key: " + strings.Repeat("x", 1000) +
				", rate_limit: {unit: day, requests_per_unit: 1}}\n", "other.yaml": ""},
			"1 rule added: shop." + strings.Repeat("x", 115) + "... (1 per day); 3 rules removed: " +
				"other.user_banned.txt (0 per day), shop.user_banned.txt (0 per day), " +
				"shop.tenant_tenants.csv (as in tenants.csv per hour)",
		},
	} {
		after := l.load(t, tt.files)
		if got := strings.ReplaceAll(rulechange.Summary(before, after), l.dir, "DIR"); got != tt.want {
			t.Errorf("%v:\n got %s\nwant %s", tt.files, got, tt.want)
		}
		before = after
	}
}

// A reload says which values of a file changed: the first by their lines, quoted and cut.
func TestFileSummary(t *testing.T) {
	t.Parallel()
	l := newLoader(t)
	const tenants = "domain: shop\ndescriptors:\n- {key: tenant, limits_from: tenants.csv, rate_limit: {unit: day}}\n"
	long := strings.Repeat("x", 60)
	version := func(lines ...string) map[string]string {
		return map[string]string{"shop.yaml": tenants, "tenants.csv": strings.Join(lines, "\n") + "\n"}
	}
	before := l.load(t, version("globex,6000", "e,9", "d,9", "c,9", "b,9", "a,9", long+",unlimited", "gone,7"))
	after := l.load(t, version("a,8", "b,7", "c,6", "d,5", "e,4", "globex,600", long+",1"))
	want := `tenants.csv: 1 removed ("gone" 7), 7 lowered ("a" 9 -> 8, "b" 9 -> 7, "c" 9 -> 6 and 4 more)`
	if got := rulechange.Summary(before, after); !strings.HasSuffix(got, "/"+want) {
		t.Errorf("got %s, want %s", got, want)
	}
	last := l.load(t, version("a,8", "b,7", "c,6", "d,5", "e,4", "globex,60", long+",2"))
	want = `tenants.csv: 1 raised ("` + long[:40] + `"... 1 -> 2), 1 lowered ("globex" 600 -> 60)`
	if got := rulechange.Summary(after, last); !strings.HasSuffix(got, "/"+want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A reload names the settings that changed, not only the limit, which may be as before.
func TestSettingsInSummary(t *testing.T) {
	t.Parallel()
	l := newLoader(t)
	const rule = "- {key: user, %s rate_limit: {unit: minute, requests_per_unit: 60%s}}\n"
	version := func(mode, settings string) map[string]string {
		return map[string]string{"shop.yaml": "domain: shop\ndescriptors:\n" + fmt.Sprintf(rule, mode, settings)}
	}
	before := l.load(t, version("", ""))
	for _, tt := range []struct{ mode, settings, want string }{
		{"shadow_mode: true,", "", "1 rule loosened: shop.user (60 per minute, shadow_mode: false -> true)"},
		{"", "", "1 rule tightened: shop.user (60 per minute, shadow_mode: true -> false)"},
		{"", ", on_store_failure: allow", "1 rule changed: shop.user (60 per minute, on_store_failure: error -> allow)"},
		{"", ", on_store_failure: deny", "1 rule changed: shop.user (60 per minute, on_store_failure: allow -> deny)"},
		{
			"shadow_mode: true, quota_mode: true, detailed_metric: true,", "0",
			"1 rule loosened: shop.user (60 per minute -> 600 per minute, on_store_failure: deny -> error, " +
				"shadow_mode: false -> true, quota_mode: false -> true and 1 more setting)",
		},
	} {
		after := l.load(t, version(tt.mode, tt.settings))
		if got := rulechange.Summary(before, after); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
		before = after
	}
}

// A reload compares one domain with many rules.
func BenchmarkSummary(b *testing.B) {
	l := newLoader(b)
	version := func(first int) map[string]string {
		var text strings.Builder
		text.WriteString("domain: shop\ndescriptors:\n")
		for i := range 20_000 {
			const rule = "- {key: user, value: u%d, rate_limit: {unit: minute, requests_per_unit: %d}}\n"
			fmt.Fprintf(&text, rule, i, max(first-i, 1))
		}
		return map[string]string{"shop.yaml": text.String()}
	}
	before, after := l.load(b, version(1)), l.load(b, version(2))
	for b.Loop() {
		if rulechange.Summary(before, after) == "" {
			b.Fatal("nothing changed")
		}
	}
}
