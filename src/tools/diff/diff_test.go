package diff

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/tools/check"
	"ratelimit/src/tools/simulate"
	"ratelimit/testbed/testfiles"
)

// load reads rules with the name a.yaml in a directory of their own.
func load(t *testing.T, text string) *side {
	t.Helper()
	dir := t.TempDir()
	testfiles.Write(t, filepath.Join(dir, "a.yaml"), text)
	s := &side{check.Load([]string{dir}, compile.Options{}), dir}
	if s.Set == nil {
		t.Fatal(s.Problems, text)
	}
	return s
}

// tree returns a file of descriptors, one on each line. A blank stands for the tree's indentation.
func tree(lines ...string) string {
	return "domain: d\ndescriptors:\n  - " + strings.Join(lines, "\n  - ") + "\n"
}

// list returns a file with an ordered list, one rule on each line.
func list(lines ...string) string {
	return "domain: d\nrules:\n  - " + strings.Join(lines, "\n  - ") + "\n"
}

// user returns a descriptor with the key user and a limit.
func user(limit string) string { return "{key: user, rate_limit: {" + limit + "}}" }

const perMinute = "unit: minute, requests_per_unit: "

// short returns a change in one line: kind, rule, settings, counters.
func short(c *RuleChange) string {
	parts := []string{c.Kind, c.Rule}
	for _, s := range c.Settings {
		parts = append(parts, s.Name+":"+s.Effect)
	}
	return strings.Join(append(parts, c.Counters), " ")
}

// TestRules has pairs of rule files, and the changes between them.
func TestRules(t *testing.T) {
	t.Parallel()
	ten := tree(user(perMinute + "10"))
	wildcards := []string{
		"{key: p, value: a*, rate_limit: {unit: day, requests_per_unit: 1}}",
		"{key: p, value: b*, rate_limit: {unit: day, requests_per_unit: 2}}",
	}
	first, second := "{match: {a: x}, per: [u], rate_limit: {unit: day, requests_per_unit: 1}}",
		"{match: {a: \"*\"}, rate_limit: {unit: day, requests_per_unit: 2}}"
	for _, tt := range []struct{ old, now, want string }{
		{ten, ten, ""},
		{ten, tree(user(perMinute + "11")), "loosened d.user limit:looser kept"},
		{ten, tree(user(perMinute + "9")), "tightened d.user limit:tighter kept"},
		{ten, tree(user("unit: hour, requests_per_unit: 600")), "loosened d.user limit:looser new"},
		{ten, tree(user("unit: hour, requests_per_unit: 10")), "tightened d.user limit:tighter new"},
		{ten, tree(user("unit: hour, requests_per_unit: 100")), "changed d.user limit: new"},
		{ten, tree(user("unit: second, unit_multiplier: 60, requests_per_unit: 10")), "changed d.user limit: kept"},
		{ten, tree(user("unlimited: true")), "loosened d.user limit:looser none"},
		{tree(user("unlimited: true")), ten, "tightened d.user limit:tighter new"},
		{ten, tree(user(perMinute + "10, algorithm: sliding_window")), "changed d.user algorithm: new"},
		{ten, tree(user(perMinute + "10, count_blocked: false")), "loosened d.user limit:looser kept"},
		{ten, tree(user(perMinute + "10, enforce_percent: 50")), "loosened d.user limit:looser kept"},
		{
			tree(user(perMinute + "10, enforce_percent: 0.5")), tree(user(perMinute + "10, enforce_percent: 2")),
			"tightened d.user limit:tighter kept",
		},
		{
			tree(user(perMinute + "10, enforce_percent: 5")), tree(user("unlimited: true")),
			"loosened d.user limit:looser none",
		},
		{ten, tree(user(perMinute + "10, on_store_failure: allow")), "changed d.user on_store_failure: kept"},
		{ten, tree(user(perMinute + "10, counting: leased")), "changed d.user counting: kept"},
		{
			tree(user(perMinute + "10, counting: leased, on_contention: refuse")), ten,
			"changed d.user counting: on_contention: kept",
		},
		{ten, tree(user(perMinute + "10, name: x")), "changed d.user name: kept"},
		{
			ten, strings.Replace(ten, "{key: user,", "{key: user, shadow_mode: true,", 1),
			"loosened d.user shadow_mode:looser kept",
		},
		{
			strings.Replace(ten, "{key: user,", "{key: user, quota_mode: true,", 1), ten,
			"tightened d.user quota_mode:tighter kept",
		},
		{
			ten, strings.Replace(ten, "{key: user,", "{key: user, metadata: {a: 1}, detailed_metric: true,", 1),
			"changed d.user detailed_metric: metadata: kept",
		},
		{ten, strings.Replace(ten, "domain: d", "domain: e", 1), "renamed e.user new"},
		{ten, strings.ReplaceAll(ten, "user", "ip"), "added d.ip new|removed d.user none"},
		{
			ten, tree(user(perMinute+"10"), "{key: user, value: bob, rate_limit: {unit: minute, requests_per_unit: 5}}"),
			"added d.user_bob kept",
		},
		{
			tree(user(perMinute+"10"), "{key: user, value: bob, rate_limit: {unit: minute, requests_per_unit: 5}}"), ten,
			"removed d.user_bob kept",
		},
		{
			tree("{key: ip, cidr: [10.0.0.0/8, 192.0.2.0/24], rate_limit: {unit: day, requests_per_unit: 1}}"),
			tree("{key: ip, cidr: [10.0.0.0/8, 198.51.100.0/24], rate_limit: {unit: day, requests_per_unit: 1}}"),
			"changed d.ip_10.0.0.0/8 cidr: kept",
		},
		{
			tree("{key: ip, rate_limit: {unit: day, requests_per_unit: 1}}"),
			tree("{key: ip, count_by_prefix: {v4: 24}, rate_limit: {unit: day, requests_per_unit: 1}}"),
			"changed d.ip count_by_prefix: new",
		},
		{
			tree("{key: a, value: x, rate_limit: {unit: day, requests_per_unit: 1}}"),
			tree("{key: a, regex: x, rate_limit: {unit: day, requests_per_unit: 1}}"), "added d.a_x kept|removed d.a_x kept",
		},
		{
			tree("{key: user, value: x*, rate_limit: {unit: day, requests_per_unit: 1}}"),
			tree("{key: user, value: x*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}"),
			"tightened d.user_x* share_threshold:tighter new",
		},
		{
			tree("{key: user, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}"),
			tree("{key: user, rate_limit: {unit: day, requests_per_unit: 1}}"), "changed d.user value_to_metric: kept",
		},
		{
			ten, tree("{key: user, rate_limits: [{unit: second, requests_per_unit: 1}, {unit: minute, requests_per_unit: 10}]}"),
			"added d.user new|renamed d.user.2 new in Redis and Memcached",
		},
		{tree(wildcards...), tree(wildcards[1], wildcards[0]), "moved d.p_b* order: kept"},
		{
			tree(user("unit: day, requests_per_unit: 1, calendar: true")),
			tree(user("unit: day, requests_per_unit: 1, calendar: true, time_zone: Europe/Berlin")),
			"changed d.user limit: new",
		},
		{
			tree(user("algorithm: gcra, " + perMinute + "10")), tree(user("algorithm: gcra, burst: 3, " + perMinute + "20")),
			"changed d.user limit: kept",
		},
		{list(first), list(strings.Replace(first, "[u]", "[v]", 1)), "changed d.a_x per: new"},
		{list(first), list(strings.Replace(first, "unit: 1", "unit: 2", 1)), "loosened d.a_x limit:looser new"},
		{list(second), list(first, second), "added d.a_x new"},
		{
			list("{match: {a: x}, rate_limit: {name: n, unit: day, requests_per_unit: 1}}"),
			list("{match: {a: y}, rate_limit: {name: n, unit: day, requests_per_unit: 1}}"), "changed d.n match: new",
		},
		{
			list("{match: {a: x*}, rate_limit: {unit: day, requests_per_unit: 1}}",
				"{match: {b: x*}, rate_limit: {unit: day, requests_per_unit: 1}}"),
			list("{match: {b: x*}, rate_limit: {unit: day, requests_per_unit: 1}}",
				"{match: {a: x*}, rate_limit: {unit: day, requests_per_unit: 1}}"), "moved d.b_x* order: kept",
		},
	} {
		rep := compare(load(t, tt.old), load(t, tt.now), rules.KeyFormat{})
		var got []string
		for i := range rep.Rules {
			got = append(got, short(&rep.Rules[i]))
		}
		if text := strings.Join(got, "|"); text != tt.want {
			t.Errorf("from\n%sto\n%sgot  %s\nwant %s", tt.old, tt.now, text, tt.want)
		}
		if rep.Changed != (tt.want != "") {
			t.Errorf("changed: %v for %s", rep.Changed, tt.want)
		}
	}
}

// What is told besides rules: domains, descriptors without a limit, warnings.
func TestNames(t *testing.T) {
	t.Parallel()
	ten := tree(user(perMinute + "10"))
	rep := compare(load(t, ten), load(t, ten+"  - {key: user, value: staff}\n  - {key: x, quota_mode: true}\n"),
		rules.KeyFormat{})
	if got := fmt.Sprint(rep.Exempt, rep.Domains, len(rep.NewWarnings)); got != "{[d.user_staff d.x] []} {[] []} 1" ||
		!rep.Changed {
		t.Errorf("got %s", got)
	}
	rep = compare(load(t, ten), load(t, strings.ReplaceAll(ten, "domain: d", "domain: e")), rules.KeyFormat{})
	if got := fmt.Sprint(rep.Domains); got != "{[e] [d]}" {
		t.Errorf("got %s", got)
	}
}

// recording returns lines of requests of users, each a second after the one before.
func recording(users ...string) string {
	var b strings.Builder
	for i, u := range users {
		value, _ := json.Marshal(u)
		fmt.Fprintf(
			&b, `{"at":"%ds","answer":"OK","request":{"domain":"d","descriptors":[{"entries":[{"key":"user","value":%s}]}]}}`+"\n", i, value)
	}
	return b.String()
}

func replayText(t *testing.T, old, now, text string) *Report {
	t.Helper()
	before, after := load(t, old), load(t, now)
	rep := compare(before, after, rules.KeyFormat{})
	var err error
	rep.Replay, err = replay(t.Context(), before.Set, after.Set, simulate.Config{In: strings.NewReader(text), Name: "in"},
		1<<20, func(uint64, time.Time) {})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestReplay(t *testing.T) {
	t.Parallel()
	now := tree(user(perMinute+"1"), "{key: user, value: bob, rate_limit: {unit: minute, requests_per_unit: 5}}")
	rep := replayText(t, tree(user(perMinute+"2")), now, recording("alex", "bob", "alex", "bob", "alex", "bob"))
	r := rep.Replay
	if got := fmt.Sprint(r.Requests, r.OldOver, r.NewOver, r.NowOver, r.NowOK, r.Errors, r.Recorded,
		r.AsRecorded); got != "6 2 2 1 1 0 6 4" {
		t.Errorf("got %s", got)
	}
	if got := fmt.Sprint(r.Subjects); got != "[{d.user user=alex {1 0 0}} {d.user user=bob {0 1 0}}]" {
		t.Errorf("got %s", got)
	}
	if len(r.Rules) != 1 || len(r.Rules[0].Examples) != 2 || r.Rules[0].Examples[0].Line != 3 ||
		r.Rules[0].Examples[0].Request != "d: user=alex" {
		t.Errorf("got %+v", r.Rules)
	}
}

// The Markdown has room in a comment, and texts of callers stay inside their code.
func TestMarkdownIsBounded(t *testing.T) {
	t.Parallel()
	var users, old, now []string
	for i := range 2000 {
		u := fmt.Sprintf("`|@team <b>%d %s", i, strings.Repeat("x", 50))
		users = append(users, u, u)
		old = append(old, fmt.Sprintf("{key: user, value: %q, rate_limit: {unit: day, requests_per_unit: 2}}", u))
		now = append(now, fmt.Sprintf("{key: user, value: %q, rate_limit: {unit: day, requests_per_unit: 1}}", u))
	}
	rep := replayText(t, tree(old...), tree(now...), recording(users...))
	text := rep.Markdown(listed{rules: 1 << 20, subjects: 1 << 20})
	if len(text) > 65_000 || !strings.HasPrefix(text, "<!-- ratelimit diff -->\n") || !strings.Contains(text, "left out: this comment would be too long") {
		t.Errorf("%d bytes: %.100s … %s", len(text), text, text[len(text)-100:])
	}
	for line := range strings.Lines(text) {
		if strings.Count(line, "`")%2 != 0 || strings.Contains(strings.Join(outsideCode(line), ""), "@team") {
			t.Errorf("code is not closed: %s", line)
		}
	}
	text = rep.Markdown(listed{rules: 100, subjects: 10})
	if !strings.Contains(text, "and 1900 more changed rules") || len(text) > 60_000 {
		t.Errorf("%d bytes", len(text))
	}
}

// outsideCode returns the parts of a line of Markdown that are not code.
func outsideCode(line string) (parts []string) {
	for i, part := range strings.Split(line, "`") {
		if i%2 == 0 {
			parts = append(parts, part)
		}
	}
	return parts
}

// Data files are compared by their values, wherever they are.
func TestDataFiles(t *testing.T) {
	t.Parallel()
	const rulesText = "domain: d\ndescriptors:\n- {key: a, values_from: v.txt, rate_limit: {unit: day, requests_per_unit: 1}}\n- {key: a, limits_from: l.csv, rate_limit: {unit: day}}\n"
	read := func(values, limits string) *side {
		dir := t.TempDir()
		for name, text := range map[string]string{"a.yaml": rulesText, "v.txt": values, "l.csv": limits} {
			testfiles.Write(t, filepath.Join(dir, name), text)
		}
		r := check.Load([]string{dir}, compile.Options{})
		if r.Set == nil {
			t.Fatal(r.Problems)
		}
		return &side{r, dir}
	}
	before := read("x\ny\n", "p,1\nq,2\nr,unlimited\n")
	for _, tt := range []struct{ values, limits, want string }{
		{"# same\ny\nx\n", "q,2\np,1\nr,unlimited\n", ""},
		{"x\nz\nu\n", "p,1\nq,2\nr,unlimited\n", "changed d.a_v.txt values_from: 2 values -> 3 values: 2 added (\"z\", \"u\"), 1 removed (\"y\")"},
		{"x\ny\n", "p,2\nq,2\nr,unlimited\n", "loosened d.a_l.csv limits_from: 3 values -> 3 values: 1 raised (\"p\" 1 -> 2)"},
		{"x\ny\n", "p,1\nq,1\nr,9\n", "tightened d.a_l.csv limits_from: 3 values -> 3 values: 2 lowered (\"q\" 2 -> 1, \"r\" unlimited -> 9)"},
		{"x\ny\n", "p,unlimited\nq,1\nr,unlimited\ns,1\n", "changed d.a_l.csv limits_from: 3 values -> 4 values: 1 added (\"s\" 1), " +
			"1 raised (\"p\" 1 -> unlimited), 1 lowered (\"q\" 2 -> 1)"},
	} {
		got := ""
		for _, r := range compare(before, read(tt.values, tt.limits), rules.KeyFormat{}).Rules {
			for _, s := range r.Settings {
				got += fmt.Sprintf("%s %s %s: %s -> %s", r.Kind, r.Rule, s.Name, s.Old, s.New)
			}
		}
		if got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}
