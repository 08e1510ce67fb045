package propose

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/tools/check"
	"ratelimit/src/tools/simulate"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

// propose runs the command with files in a directory of their own, and returns what it prints and its error.
func propose(t *testing.T, files map[string]string, args ...string) (dir, out string, err error) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		testfiles.Write(t, path, text)
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "DIR", dir)
	}
	var b bytes.Buffer
	cmd := Command()
	cmd.SetArgs(args)
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(t.Context())
	return dir, strings.ReplaceAll(b.String(), dir, "DIR"), err
}

// line returns a line of a recording: a request of domain d with one descriptor, "user=a,path=b".
func line(seconds float64, descriptor string, hits int) string {
	var entries []string
	for pair := range strings.SplitSeq(descriptor, ",") {
		key, value, _ := strings.Cut(pair, "=")
		entries = append(entries, fmt.Sprintf(`{"key":%q,"value":%q}`, key, value))
	}
	return fmt.Sprintf(`{"at":"%gs","request":{"domain":"d","hitsAddend":%d,"descriptors":[{"entries":[%s]}]}}`+"\n",
		seconds, hits, strings.Join(entries, ","))
}

// tenUsers has a recording of two minutes in which user n uses n units in the first minute, and one in the second.
func tenUsers() string {
	var b strings.Builder
	for n := 1; n <= 10; n++ {
		b.WriteString(line(float64(n), fmt.Sprintf("user=u%d", n), n))
	}
	for n := 1; n <= 10; n++ {
		b.WriteString(line(60+float64(n), fmt.Sprintf("user=u%d", n), 1))
	}
	return b.String()
}

const userRule = "# The shop.\ndomain: d\ndescriptors:\n  - key: user # each\n" +
	"    rate_limit: {unit: minute, requests_per_unit: 4} # today\n" +
	"  - key: ip\n    rate_limit: {unit: day, requests_per_unit: 3}\n"

// A reader can check these figures by hand: 20 windows with 1 to 10 units, and ten times 1.
func TestFigures(t *testing.T) {
	t.Parallel()
	_, out, err := propose(t, map[string]string{"r.jsonl": tenUsers(), "rules.yaml": userRule},
		"DIR/r.jsonl", "DIR/rules.yaml", "--refuse-at-most", "20%", "--limit", "9", "--json")
	if err != nil {
		t.Fatal(err, out)
	}
	var rep Report
	if err := json.Unmarshal([]byte(out), &rep); err != nil {
		t.Fatal(err)
	}
	r := rep.Rules[0]
	want := RuleReport{
		Rule: "d.user", At: "DIR/rules.yaml:4:5", Window: "minute", Limit: "4 per minute",
		Hits: 65, Windows: 20, Subjects: 10, SampledOneIn: 1, Busiest: "user=u10", Proposed: 8,
		Used: Used{P50: 1, P90: 8, P99: 10, Max: 10},
		Limits: []Refusal{
			{"p50", 1, 100 * 45.0 / 65, 90},
			{"p90", 8, 100 * 3.0 / 65, 20},
			{"p99", 10, 0, 0},
			{"--limit", 9, 100 * 1.0 / 65, 10},
			{"now", 4, 100 * 21.0 / 65, 60},
			{"proposed", 8, 100 * 3.0 / 65, 20},
		},
	}
	if got, want := fmt.Sprintf("%+v", r), fmt.Sprintf("%+v", want); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if unused := rep.Rules[1]; unused.Proposed != 0 || unused.WhyNone == "" || rep.Requests != 20 {
		t.Errorf("%+v", rep)
	}
}

// The output is the file with other numbers and more comments.
func TestOutput(t *testing.T) {
	t.Parallel()
	dir, out, err := propose(t, map[string]string{"r.jsonl": tenUsers(), "rules.yaml": userRule},
		"DIR/r.jsonl", "DIR/rules.yaml", "--refuse-at-most", "20%", "-o", "DIR/new.yaml")
	if err != nil {
		t.Fatal(err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "new.yaml"))
	want := strings.Replace(userRule, "    rate_limit: {unit: minute, requests_per_unit: 4}",
		"    # 10 subjects use in one window: p50 1, p90 8, p99 10, max 10.\n"+
			"    # 8 refuses 20% of subjects and 4.615% of hits; at most 20% of subjects are asked for.\n"+
			"    # It was 4.\n    rate_limit: {unit: minute, requests_per_unit: 8}", 1)
	head, rest, _ := strings.Cut(string(text), "\n")
	if err != nil || rest != want || !strings.HasPrefix(head, "# Limits by `ratelimit propose` from ") {
		t.Errorf("%v: got\n%s\nwant\n%s", err, text, want)
	}
	if !strings.Contains(out, "written: DIR/new.yaml, with 1 new limit\n") ||
		!strings.Contains(out, "limits without requests, and so without a proposal: d.ip\n") {
		t.Error(out)
	}
}

// Places of limits that a file can have, and what becomes of them.
func TestPlaces(t *testing.T) {
	t.Parallel()
	recording := line(1, "user=a", 30) + line(1, "user=a,path=/p", 7) + line(2, "ip=1.2.3.4", 5)
	const user = "domain: d\ndescriptors:\n- {key: user, rate_limit: {"
	for _, tt := range []struct{ name, file, text, want string }{
		{"lists of limits", "a.yaml", `domain: d
descriptors:
- {key: user, rate_limits: [{unit: minute, requests_per_unit: 1}, {unit: day, requests_per_unit: 2}]}
- key: ip
  rate_limits:
  - requests_per_unit: 3
    unit: hour
`, "[30 30 5]"},
		{"JSON", "a.json", `{"domain": "d", "descriptors": [
{"key": "user", "rate_limit": {"unit": "day", "requests_per_unit": 1},
"descriptors": [{"key": "path", "rate_limit": {"unit": "day", "requests_per_unit": 1}}]}]}`, "[30 7]"},
		{"letters of several bytes", "a.yaml", "domain: d\nrules:\n- {match: {user: '*'}, per: [user], " +
			"rate_limit: {name: äöü, unit: day, requests_per_unit: 1}}\n", "[37]"},
		{"an alias", "a.yaml", `domain: d
descriptors:
- {key: user, rate_limit: &limit {unit: minute, requests_per_unit: 1}}
- {key: ip, rate_limit: *limit}
`, "[1 1]"},
		{"no number", "a.yaml", user + "unlimited: true}}\n", "[0]"},
		{"a ban", "a.yaml", user + "unit: day, requests_per_unit: 0}}\n", "[0]"},
		{"gcra", "a.yaml", user + "algorithm: gcra, unit: day, burst: 3, requests_per_unit: 5}}\n", "[30]"},
		{"holds", "a.yaml", user + "algorithm: concurrency, hold: 30s, hold_id: id, requests_per_unit: 5}}\n", "[5]"},
		{"a tree of limits", "d.yaml", "schema:\n  a: {limits: [1, 2, 1]}\n", "[2]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, out, err := propose(t, map[string]string{"r.jsonl": recording, "rules/" + tt.file: tt.text},
				"DIR/r.jsonl", "DIR/rules", "-o", "DIR/new")
			if err != nil {
				t.Fatal(err, out)
			}
			loaded := check.Load([]string{filepath.Join(dir, "new")}, compile.Options{})
			if loaded.Set == nil {
				t.Fatal(loaded.Problems)
			}
			var got []uint64
			for _, r := range loaded.Set.Rules() {
				got = append(got, r.RequestsPerUnit())
			}
			if fmt.Sprint(got) != tt.want {
				t.Errorf("%v, want %s\n%s", got, tt.want, out)
			}
			if tt.want == "[1 1]" && !strings.Contains(out, "not written: d.ip") {
				t.Error(out)
			}
		})
	}
}

// Keys and domains of any text give a file that says the same.
func TestByKeys(t *testing.T) {
	t.Parallel()
	keys := []string{`a"b`, "c: {d}", "#é\n", "<e>", "*"}
	files := []filerules.File{{Name: "a.yaml", Data: byKeys("x: y", keys, "hour")}}
	set := limitertest.Load(t, files)
	r := set.Rules()[0]
	if r.Domain != "x: y" || !slices.Equal(r.ListSettings.PerKeys, keys) || r.LimitText() != "1 per hour" {
		t.Errorf("%s", r)
	}
}

// For want of room, a sample is followed. What it says about all subjects is near the truth, and so is the number of
// subjects.
func TestSample(t *testing.T) {
	t.Parallel()
	const users, most = 20_000, 2_000
	random := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for i := range 2 * users { // Each user has two windows with the same use.
		user := i % users
		b.WriteString(line(float64(i/users*60), fmt.Sprintf("user=u%d,few=%d", user, user%10), 1+random.IntN(100)))
	}
	text := "domain: d\nrules:\n- {match: {user: '*'}, per: [user], rate_limit: {unit: minute, requests_per_unit: 50}}\n"
	few := "domain: d\nrules:\n- {match: {few: '*'}, per: [few], rate_limit: {unit: minute, requests_per_unit: 50}}\n"
	for _, tt := range []struct {
		rules          string
		sampled        uint64
		subjects, over float64 // over is the percentage of subjects that a limit of 50 refuses
	}{{text, 16, users, 75}, {few, 1, 10, 100}} {
		set := limitertest.Load(t, []filerules.File{{Name: "a.yaml", Data: []byte(tt.rules)}})
		counted := 0
		cfg := simulate.Config{In: strings.NewReader(b.String()), Name: "r"}
		traffic, err := measure(t.Context(), set, cfg, most, func(tr *traffic) { counted = max(counted, tr.sampler.count) })
		if err != nil || counted > most {
			t.Fatal(err, counted)
		}
		r := traffic.report(set, 0, nil, false).Rules[0]
		now := r.Limits[len(r.Limits)-2]
		if r.SampledOneIn != tt.sampled || math.Abs(float64(r.Subjects)/tt.subjects-1) > 0.1 ||
			math.Abs(float64(r.Windows)/2/tt.subjects-1) > 0.1 || math.Abs(now.SubjectsPercent-tt.over) > 5 {
			t.Errorf("%+v", r)
		}
	}
}

// Limits have at most two digits other than 0, and percentiles three.
func TestRoundUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ n, most, want uint64 }{
		{1, 100, 1},
		{99, 100, 99},
		{100, 100, 100},
		{101, 100, 110},
		{999, 100, 1000},
		{1001, 1000, 1010},
		{1000, 1000, 1000},
		{123_456, 100, 130_000},
		{123_456, 1000, 124_000},
	} {
		if got := roundUp(tt.n, tt.most); got != tt.want {
			t.Errorf("roundUp(%d, %d) = %d, want %d", tt.n, tt.most, got, tt.want)
		}
	}
}

// What is wrong with the arguments, with exit code 2 for all.
func TestMistakes(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"r.jsonl": tenUsers(), "rules.yaml": userRule, "bad.jsonl": "{}\n", "bad.yaml": "domain: d\nx: y\n",
	}
	for _, tt := range []struct{ args, want string }{
		{"", "got 0 arguments"},
		{"DIR/r.jsonl", "name rules behind the recording, or keys with --by"},
		{"DIR/r.jsonl --by user", "and the domain with --domain"},
		{"DIR/r.jsonl --by user, --domain d", "write keys"},
		{"DIR/r.jsonl DIR/rules.yaml --unit day", "go without RULES"},
		{"DIR/r.jsonl DIR/rules.yaml --refuse-at-most 1", "--refuse-at-most 1: write a percentage"},
		{"DIR/r.jsonl DIR/rules.yaml --refuse-at-most NaN%", "write a percentage"},
		{"DIR/r.jsonl DIR/rules.yaml --limit x", "--limit x: write whole numbers"},
		{"DIR/r.jsonl DIR/rules.yaml -o DIR/rules.yaml", "rules.yaml: it exists"},
		{"DIR/bad.jsonl DIR/rules.yaml", `bad.jsonl:1: there is no "at"`},
		{"DIR/none.jsonl DIR/rules.yaml", "no such file"},
		{"DIR/r.jsonl DIR/bad.yaml", "unknown key"},
	} {
		_, out, err := propose(t, files, strings.Fields(tt.args)...)
		if text := fmt.Sprint(out, err); err == nil || !strings.Contains(text, tt.want) {
			t.Errorf("%s: got %s, want %s", tt.args, text, tt.want)
		}
	}
}

func BenchmarkMeasure(b *testing.B) {
	set := limitertest.Load(b, []filerules.File{{Name: "a.yaml", Data: []byte(userRule)}})
	text := tenUsers()
	b.ReportAllocs()
	for b.Loop() {
		cfg := simulate.Config{In: strings.NewReader(text), Name: "r"}
		if _, err := measure(b.Context(), set, cfg, maxSubjects, func(*traffic) {}); err != nil {
			b.Fatal(err)
		}
	}
}
