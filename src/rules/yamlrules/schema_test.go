package yamlrules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"

	"ratelimit/api"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/datafile"
	"ratelimit/testbed/testfiles"
)

var compiledSchema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(api.Schema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("rules.json", doc); err != nil {
		return nil, err
	}
	return c.Compile("rules.json")
})

func validate(t testing.TB, instance any) error {
	t.Helper()
	s, err := compiledSchema()
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(instance)
}

var errNoJSON = errors.New("nothing a schema could see")

// instance is what an editor sees of the first document of a file, with scalars read by YAML 1.1, aliases followed and
// `<<` merged.
func instance(data []byte) (any, error) {
	r := &reader{}
	root := r.readDocument(data)
	if len(r.problems) > 0 {
		return nil, errNoJSON
	}
	if root == nil {
		return nil, nil
	}
	return jsonOf(r, root)
}

func jsonOf(r *reader, n *yaml.Node) (any, error) {
	switch n.Kind {
	case yaml.MappingNode:
		m := make(map[string]any)
		accept, replace := func(*field) bool { return true }, func(_, _ *field) bool { return true }
		for _, f := range r.collectFields(n, accept, replace) {
			v, err := jsonOf(r, f.valueNode)
			if err != nil {
				return nil, err
			}
			m[f.name] = v
		}
		return m, nil
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range n.Content {
			v, err := jsonOf(r, resolveAlias(item))
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	}
	switch s := parseScalar(n); s.Kind {
	case compile.KindNull:
		return nil, nil
	case compile.KindBool:
		return s.Bool, nil
	case compile.KindInt:
		return json.Number(strconv.FormatInt(s.Int, 10)), nil
	case compile.KindBigInt:
		i, ok := new(big.Int).SetString(strings.ReplaceAll(s.Text, "_", ""), 0)
		if !ok {
			return nil, errNoJSON
		}
		return json.Number(i.String()), nil
	case compile.KindFloat:
		f, err := strconv.ParseFloat(strings.ReplaceAll(s.Text, "_", ""), 64)
		text, err2 := json.Marshal(f)
		if err != nil || err2 != nil {
			return 1.5, nil // infinite, or no number: no integer either
		}
		return json.Number(text), nil
	default:
		return s.Text, nil
	}
}

// textFile is a rule file.
type textFile struct {
	Name string
	Data []byte
}

// compileText reads and compiles a file.
func compileText(f textFile) (*rules.Set, rules.Problems, error) {
	cfg, problems, warnings := Parse(f.Name, f.Data)
	if len(problems) > 0 {
		return nil, nil, problems
	}
	if cfg == nil {
		return nil, nil, nil
	}
	cfg.DataFiles = datafile.Files{}
	addDataFiles(cfg.DataFiles, cfg.Descriptors)
	set, more, err := compile.Compile([]compile.DomainConfig{*cfg}, compile.Options{})
	return set, append(warnings, more...), err
}

// addDataFiles adds a file with one value for each that the descriptors name.
func addDataFiles(files datafile.Files, list []compile.DescriptorConfig) {
	for i := range list {
		for r := range list[i].DataFiles() {
			f := &datafile.File{Path: r.Name}
			if f.Table, f.Problems = datafile.Parse(r.Name, []byte("x,5\n"), r.Kind, new(datafile.Pacer)); r.Name == "" {
				f.Table, f.Problems = nil, []datafile.Problem{{Message: "the path is empty"}}
			}
			files[r] = f
		}
		addDataFiles(files, list[i].Descriptors)
	}
}

// textCases are the files of testdata, and the names of their cases.
func textCases(t *testing.T, file string) (list []textFile) {
	t.Helper()
	data := testfiles.Read(t, filepath.Join("../testdata", file))
	for one := range strings.SplitSeq(string(data), "\n== ") {
		title, body, _ := strings.Cut(one, "\n")
		if strings.Contains(body, ".csv --\n") { // Rules with data files cannot be compiled alone.
			continue
		}
		for section := range strings.SplitSeq("\n"+body, "\n-- ") {
			if name, content, ok := strings.Cut(section+"\n", " --\n"); ok && name != "want" {
				list = append(list, textFile{title + "/" + name, []byte(content)})
			}
		}
	}
	if len(list) < 10 {
		t.Fatalf("%s has %d files", file, len(list))
	}
	return list
}

// passedOver tells a file of tests, which the schema is not for.
func passedOver(data []byte) bool {
	cfg, problems, _ := Parse("a.yaml", data)
	return cfg == nil && len(problems) == 0
}

// What the reader takes is not underlined: all examples, what the
// documents show, and the cases of the tests. Editors that read YAML 1.2, as most do unless told
// otherwise, do not underline examples and documents either.
func TestSchemaTakes(t *testing.T) {
	var shown []textFile
	paths, err := filepath.Glob("../../../examples/ratelimit/config/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, "../../../examples/trees/limits.yaml") {
		data := testfiles.Read(t, path)
		shown = append(shown, textFile{path, data})
	}
	documents := []string{"../../../README.md"}
	for _, pattern := range []string{"../../../docs/*.md", "../../../docs/recipes/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, found...)
	}
	for _, path := range documents {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(data, -1) {
			if !passedOver(m[1]) {
				shown = append(shown, textFile{path, m[1]})
			}
		}
	}
	if len(shown) < 25 {
		t.Fatalf("only %d files", len(shown))
	}
	for _, f := range shown {
		var v any
		if err := yaml.Unmarshal(f.Data, &v); err != nil {
			t.Fatal(err)
		}
		if err := validate(t, v); err != nil {
			t.Errorf("%s, by YAML 1.2: %v\n%s", f.Name, err, f.Data)
		}
	}
	for _, f := range slices.Concat(shown, textCases(t, "accepted.txt"), textCases(t, "warned.txt")) {
		if _, _, err := compileText(f); err != nil {
			t.Fatal(err)
		}
		if passedOver(f.Data) {
			continue
		}
		v, err := instance(f.Data)
		if err != nil {
			t.Fatal(f.Name, err)
		}
		if err := validate(t, v); err != nil {
			t.Errorf("%s: %v\n%s", f.Name, err, f.Data)
		}
	}
}

// beyondSchema are the refusals that a schema cannot express, as the beginning
// of what is said of them, and why.
var beyondSchema = []struct{ what, why string }{
	{`descriptor ".*" is already defined`, "compares two descriptors"},
	{`the limit at .* has the same algorithm and window`, "compares two limits"},
	{`count_blocked: true and on_reject: none exclude`, "compares a limit with the levels above it"},
	{`rule ".*" replaces itself`, "compares two values"},
	{`what matches is charged to more than`, "adds up the levels of a path"},
	{`.* cannot be divided into quotas`, "compares a limit with a key of the file"},
	{`the key .* is here twice`, "to a schema there is one"},
	{`the tree is more than`, "a schema does not count how often it is entered"},
	{`the network .* of the key .* is already at`, "compares two networks"},
	{`regex ".*" of the key .* is already at`, "compares two descriptors"},
	{`cidr (is not a network|is a network of IPv4 in IPv6|has bits behind)`, "calculates with an address"},
	{`(values|limits)_from ".*" of the key .* is already at`, "compares two descriptors"},
	{`the key .* has more than .* files`, "counts descriptors"},
	{`rate_limit is empty, and .* stands beside it`, "keys in the wrong place are warnings otherwise"},
	{`charge: path cannot charge the limit at`, "compares a level with the levels above it"},
	{`v[46]: .* is shorter than the network`, "compares two networks"},
	{`regex (is not a regular expression|is longer|has .* steps)`, "does not parse or measure regular expressions"},
	{`the key .* has more than .* regular expressions`, "counts descriptors"},
	{`the regular expressions of the key .* have more than`, "does not measure regular expressions"},
	{`rule .* is unreachable`, "compares two rules"},
	{`per names the key .* twice`, "5 and \"5\" are the same key"},
	{`what matches may be charged to`, "adds up the rules in shadow mode"},
	{`descriptors are nested more than`, "a schema does not count how often it is entered"},
	{`a hold of .* is longer than 24 hours`, "calculates with a duration"},
	{`the limit at .* has another hold_id`, "compares two limits"},
	{`".*" is the hold_id of a limit above`, "compares a level with the levels above it"},
	{`a (period|min_interval) of .* is longer than 100 years`, "calculates with a duration"},
	{`(period|min_interval|hold) is longer than 100 years`, "calculates with a duration"},
	{`a (period|hold) of 0s is not positive`, "0.1ns has a digit that is not 0"},
	{`a min_interval of -.* is negative`, "-0.1ns is nothing at all and fine, -0.1s is not"},
	{`fixed_window needs a period of whole seconds`, "calculates with a duration of several units"},
	{`a (period|min_interval|hold) of .* has a fraction of a microsecond`, "calculates with a duration of several units"},
	{`gcra lets one hit pass in a nanosecond at most`, "divides"},
	{`gcra counts in whole nanoseconds`, "divides"},
	{`a burst of .* takes longer than 100 years to come back`, "multiplies"},
	{`the time zone .* is not known`, "the list of time zones is long"},
	{`enforce_percent is no finite number`, "JSON has no such numbers"},
	{`an estimate of \d+ is above the limit`, "compares two numbers"},
	{`notify has no at`, "the file may have it"},
	{`url: it is no address`, "there is no parser of addresses"},
	{`on_contention means nothing without counting: leased`, "the file or COUNTING_MODE may say leased"},
	{`counting: leased is not possible: min_interval`, "0.1ns has a digit that is not 0"},
	{`.* is a (fraction|floating-point number)`, "1.0 and 1e3 are whole numbers to a schema"},
	{`.* begins with 0 as octal numbers do`, "08 is eight to YAML 1.2"},
	{`.* is a number of more than 64 bits`, "editors have 53 bits of it"},
	{`".*" cannot be sent in an answer`, "JSON has no such numbers"},
	{`a key of metadata is`, "a key is text to a schema"},
	{`".*" stands for bytes that are not UTF-8`, "decoded before a schema sees it"},
	{"`<<` needs a map or a list of maps", "merged before a schema sees it"},
}

// beyond reports whether all problems are of those, and notes them in used.
func beyond(problems rules.Problems, used map[string]bool) bool {
	all := true
	for _, p := range problems {
		i := slices.IndexFunc(beyondSchema, func(b struct{ what, why string }) bool {
			return regexp.MustCompile("^(?s:" + b.what + ")").MatchString(p.Message)
		})
		if i < 0 {
			all = false
		} else if used != nil {
			used[beyondSchema[i].what] = true
		}
	}
	return all
}

// alone is a file for each descriptor at the top of f, where that is possible.
func alone(f textFile) (list []textFile) {
	docs, err := decodeDocuments(f.Data, 1)
	if err != nil || len(docs) == 0 || len(docs[0].Content) == 0 || docs[0].Content[0].Kind != yaml.MappingNode {
		return nil
	}
	root := docs[0].Content[0]
	for i := 0; i+1 < len(root.Content); i += 2 {
		if all := root.Content[i+1]; root.Content[i].Value == "descriptors" && all.Kind == yaml.SequenceNode {
			for _, one := range all.Content {
				text, err := yaml.Marshal(map[string]any{"domain": "d", "descriptors": []*yaml.Node{one}})
				if err == nil {
					list = append(list, textFile{f.Name + " " + strconv.Itoa(one.Line), text})
				}
			}
		}
	}
	return list
}

// What the reader refuses is underlined, each wrong descriptor for itself, but
// for what a schema cannot express.
func TestSchemaRefuses(t *testing.T) {
	files := textCases(t, "refused.txt")
	for _, f := range files {
		files = append(files, alone(f)...)
	}
	for _, limit := range []string{
		"{period: 0.1ns}", "{algorithm: gcra, unit: day, min_interval: -0.1s}", "{period: 1s500ms}",
		"{algorithm: gcra, period: 1us1ns}",
		"{algorithm: gcra, unit: day, requests_per_unit: 9, min_interval: 0s1s, counting: leased}",
		"{unit: day, requests_per_unit: 1.0}", "{unit: day, requests_per_unit: 18446744073709551616}",
		"{unit: day, name: 18446744073709551615}", "{unit: day, name: a, replaces: [{name: a}]}",
	} {
		files = append(files, textFile{limit, []byte("domain: d\ndescriptors: [{key: a, rate_limit: " + limit + "}]\n")})
	}
	files = append(files, textFile{
		"deep",
		[]byte("domain: d\ndescriptors: " + strings.Repeat("[{key: a, descriptors: ", 101) + strings.Repeat("}]",
			101) + "\n"),
	})
	canary := "{shadow_mode: true, match: {a: b}, rate_limit: {unit: day, requests_per_unit: 1}},"
	files = append(files, textFile{"canaries", []byte("domain: d\nrules: [" + strings.Repeat(canary, 101) + "]\n")})
	files = append(files, textFile{
		"twice",
		[]byte("domain: d\nrules: [{match: {}, per: [5, '5'], rate_limit: {unlimited: true}}]\n"),
	})
	for _, tree := range []string{
		"{a: {limits: [0, 1, 1]}, a: {limits: [0, 1, 1]}}",
		"{[a]: {limits: [0, 1, 1]}, a: {limits: [0, 1, 1]}}",
		strings.Repeat("{a: {children: ", 100) + "{a: {limits: [0, 1, 1]}}" + strings.Repeat("}}", 100),
	} {
		files = append(files, textFile{"tree", []byte("schema: " + tree + "\n")})
	}
	for _, descriptor := range []string{
		"regex: 'x%d'", "regex: 'x{49}%d'", "regex: '%[1]T'", "values_from: f%d", "values_from: '%[1]T'",
		"limits_from: a, charge: path, rate_limit: {unit: day}, descriptors: [{key: b%d, rate_limit: {unit: day}}]",
	} {
		var list strings.Builder
		for i := range 101 {
			fmt.Fprintf(&list, "{key: a, "+descriptor+"},", i)
		}
		files = append(files, textFile{descriptor, []byte("domain: d\ndescriptors: [" + list.String() + "]\n")})
	}
	used := make(map[string]bool)
	refused := 0
	for _, f := range files {
		_, _, err := compileText(f)
		var problems rules.Problems
		if !errors.As(err, &problems) {
			continue // what is wrong with it is another descriptor
		}
		v, err := instance(f.Data)
		if err != nil {
			continue // no YAML, or one that contains itself
		}
		if err := validate(t, v); err != nil {
			refused++
			continue
		}
		if !beyond(problems, used) {
			t.Errorf("%s: the schema takes\n%s\nwhich is refused:\n%v", f.Name, f.Data, problems)
		}
	}
	if refused < 100 {
		t.Errorf("only %d files were refused", refused)
	}
	for _, b := range beyondSchema {
		if !used[b.what] {
			t.Errorf("nothing shows that a schema cannot express %q", b.what)
		}
	}
}

// Some of what a schema cannot express in full it does in the forms that are
// written most.
func TestSchemaRefusesInPart(t *testing.T) {
	for _, descriptor := range []string{
		"{key: a, rate_limit: {period: 0s}}",
		"{key: a, rate_limit: {period: 1500ms}}",
		"{key: a, rate_limit: {period: 1.5s}}",
		"{key: a, rate_limit: {algorithm: gcra, period: 1500ns}}",
		"{key: a, rate_limit: {algorithm: gcra, unit: day, min_interval: 1.5us}}",
		"{key: a, rate_limit: {algorithm: gcra, unit: day, min_interval: -1s}}",
		"{key: a, rate_limit: {unit: month, unit_multiplier: 1217}}",
		"{key: 1.5}",
		"{key: a, rate_limits: [" + strings.Repeat("{unit: day},", 101) + "]}",
	} {
		data := []byte("domain: d\ndescriptors: [" + descriptor + "]\n")
		v, err := instance(data)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := compileText(textFile{"a.yaml", data}); err == nil {
			t.Errorf("%s is taken", descriptor)
		}
		if validate(t, v) == nil {
			t.Errorf("%s is not underlined", descriptor)
		}
	}
}

// Scalars of all kinds, where text, a number or a truth value is wanted.
func TestSchemaScalars(t *testing.T) {
	for _, test := range scalars {
		for _, key := range []string{"value: ", "shadow_mode: ", "rate_limit:\n    unit: day\n    requests_per_unit: "} {
			sameVerdict(t, []byte("domain: d\ndescriptors:\n- key: k\n  "+key+test.yaml+"\n"))
		}
	}
}

// sameVerdict fails if the schema and the reader do not agree on a file, as far
// as they can.
func sameVerdict(t testing.TB, data []byte) {
	t.Helper()
	v, err := instance(data)
	if err != nil {
		return
	}
	if passedOver(data) {
		return
	}
	_, _, refused := compileText(textFile{"a.yaml", data})
	underlined := validate(t, v)
	var problems rules.Problems
	switch {
	case !errors.As(refused, &problems) && underlined != nil:
		t.Fatalf("%q is taken, but underlined: %v", data, underlined)
	case underlined == nil && !hasKeyTwice(problems) && !beyond(problems, nil):
		t.Fatalf("%q is refused, but not underlined: %v", data, refused)
	}
}

// hasKeyTwice reports whether a key is written twice. To a schema there is only the last value.
func hasKeyTwice(problems rules.Problems) bool {
	return slices.ContainsFunc(problems, func(p rules.Problem) bool {
		return strings.Contains(p.Message, " is here twice")
	})
}

// TestSchemaOfRandomLimits writes limits and descriptors of keys and values that
// stand beside each other in all ways.
func TestSchemaOfRandomLimits(t *testing.T) {
	limit := []struct {
		key    string
		values []string
	}{
		{"unit", []string{"second", "Day", "YEAR", "ſecond", "weeK", "month", "fortnight", "''", "~", "5", "true", "[day]"}},
		{"requests_per_unit", []string{"0", "1", "1000001", "281474976710656", "281474976710657", "-1", "~", "'1'", "0x10"}},
		{"unit_multiplier", []string{"0", "1", "100", "101", "1217", "36501", "~"}},
		{"unlimited", []string{"true", "yes", "no", "~", "1"}},
		{"algorithm", []string{
			"fixed_window", "first_hit_window", "sliding_window", "sliding_window_counter", "gcra", "gcra",
			"concurrency", "concurrency", "GCRA", "''", "~",
		}},
		{"period", []string{
			"1s", "1500ms", "2000ms", "1.5m", "1.5s", "0s", "+5s", "-5s", "5", "'5'", "1h30m", "~", "''",
			"1.000s", "1000us", "1000000µs", "1001ns", "876001h", "[]",
		}},
		{"calendar", []string{"true", "true", "yes", "false", "~", "5"}},
		{"time_zone", []string{"UTC", "Europe/Berlin", "Europe/Berlni", "''", "~", "5"}},
		{"anchor_day", []string{"1", "28", "0", "29", "~", "monday"}},
		{"week_starts", []string{"monday", "SUNDAY", "ſunday", "mon", "''", "~", "5"}},
		{"burst", []string{"0", "5", "281474976710655", "281474976710656", "~", "true"}},
		{"min_interval", []string{"0s", "-0s", "1ms", "-1ms", "1.5us", "~", "5"}},
		{"count_blocked", []string{"true", "no", "~", "maybe"}},
		{"hold", []string{"30s", "30s", "0s", "-1s", "25h", "1.5us", "~", "5"}},
		{"hold_id", []string{"id", "id", "5", "hold", "''", "~", "[id]"}},
		{"unsettled", []string{"charge", "release", "Charge", "~", "true"}},
		{"enforce_percent", []string{
			"0", "10", "0.5", "100", "101", "-1", "~", "'10'", "10%", ".nan", "1e400", "010",
			"true",
		}},
		{"on_store_failure", []string{"error", "allow", "deny", "local", "~", "closed", "5"}},
		{"counting", []string{"exact", "leased", "leased", "~", "lease", "5"}},
		{"on_contention", []string{"wait", "refuse", "~", "fail", "[wait]"}},
		{"reserve_on_check", []string{
			"{estimate: 5, for: 2m}", "{estimate: learned, for: 2m}", "{for: 1h}", "{estimate: 5}", "{}", "~", "{for: ~}",
			"{estimate: 0, for: 2m}", "{estimate: 5.5, for: 2m}", "{estimate: '5', for: 2m}", "{estimate: a, for: 2m}",
			"{estimate: ~, for: 2m}", "{for: 25h}", "{for: 0s}", "{for: 5}", "5", "[5]", "{unit: 5}",
		}},
		{"notify", []string{
			"{at: [80, 95, 100]}", "{at: [80], url: 'https://a/b'}", "{at: [1], url: $NOTIFY_URL_A, format: slack}", "{at: []}",
			"~", "{}", "{at: ~}", "{at: 80}", "{at: [0]}", "{at: [101]}", "{at: [80, 80]}", "{at: ['80']}", "{at: [a]}",
			"{at: [1], url: 'ftp://a'}", "{at: [1], url: $HOME}", "{at: [1], url: ''}", "{at: [1], url: 'https://'}",
			"{at: [1], url: 'http://a:b@c'}", "{at: [1], url: 'https://a#b'}", "{at: [1], format: xml}", "{at: [1], format: ~}",
			"{unit: 5}", "[80]", "80", "{at: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}", "{at: [1.5]}", "{at: [~]}",
		}},
		{"name", []string{"a", "5", "~", "true", "{}"}},
		{"replaces", []string{
			"[]", "~", "[{name: b}]", "[{name: ''}]", "[{}]", "[b]", "{name: b}",
			"[{name: 5, value: {unit: 1}}]",
		}},
		{"shadow_mode", []string{"true", "[{unit: 5}]", "[5]", "{rate: 1}", "{metadata: {rate: [1]}}"}},
		{"metadata", []string{"{a: 1}", "[5]"}},
		{"rate", []string{"5"}},
	}
	draw := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[draw.IntN(len(list))] }
	oneLimit := func() string {
		if draw.IntN(20) == 0 {
			return pick("~", "5", "[]", "second")
		}
		fields := []string{}
		for _, k := range limit {
			if draw.IntN(3) == 0 {
				fields = append(fields, k.key+": "+pick(k.values...))
			}
		}
		return "{" + strings.Join(fields, ", ") + "}"
	}
	taken, rounds := 0, 2000
	for range rounds {
		fields := []string{}
		for _, k := range []struct {
			key    string
			often  int
			values []string
		}{
			{"key", 95, []string{"a", "a", "a", "'a*'", "5", "true", "''", "~"}},
			{"value", 30, []string{"b", "'*'", "5", "~", "''", "2001-01-01"}},
			{"cidr", 15, []string{
				"10.0.0.0/8", "'::/0'", "[10.0.0.0/8, '2001:db8::/32']", "10.0.0.1/8", "10.0.0.1", "[]", "~",
				"''", "5", "[~]", "{a: b}", "[[a]]",
			}},
			{"regex", 15, []string{"'^a'", "'a$'", "'('", "''", "~", "5", "true", "[a]", "'" + strings.Repeat("x", 1001) + "'"}},
			{"values_from", 15, []string{"a.txt", "a", "''", "~", "5", "true", "[a]"}},
			{"limits_from", 15, []string{"a.csv", "b.csv", "''", "~", "5", "{a: b}"}},
			{"count_by_prefix", 15, []string{
				"{v4: 24}", "{v4: 24, v6: 64}", "{v4: 0}", "{v6: 129}", "{v4: ~}", "{}", "~", "5",
				"{v4: '24'}", "{v5: 1}", "{unit: 1}", "{v4: 7}",
			}},
			{"share_threshold", 20, []string{"true", "false", "~", "'true'"}},
			{"charge", 20, []string{"leaf", "path", "~", "tree", "''"}},
			{"on_reject", 20, []string{"each", "none", "~", "no"}},
			{"on_store_failure", 5, []string{"allow", "~"}},
			{"metadata", 10, []string{"{a: {b: [1.5, ~]}}", "~", "[]", "text"}},
			{"descriptors", 10, []string{"[]", "~", "[{key: b}]", "[{value: b}]", "{}"}},
		} {
			if draw.IntN(100) < k.often {
				fields = append(fields, k.key+": "+pick(k.values...))
			}
		}
		if draw.IntN(10) > 0 {
			fields = append(fields, "rate_limit: "+oneLimit())
		}
		if draw.IntN(10) == 0 {
			fields = append(fields, "rate_limits: "+pick("~", "[]", "["+oneLimit()+"]", "["+oneLimit()+", "+oneLimit()+"]"))
		}
		data := []byte("domain: d\ndescriptors: [{" + strings.Join(fields, ", ") + "}]\n")
		sameVerdict(t, data)
		if _, _, err := compileText(textFile{"a.yaml", data}); err == nil {
			taken++
		}
	}
	if taken < rounds/50 {
		t.Errorf("only %d of %d were good: the test says little", taken, rounds)
	}
}

// FuzzSchema: what the reader takes is not underlined, and what it refuses is, as
// far as a schema can.
func FuzzSchema(f *testing.F) {
	testfiles.Seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 10_000 {
			sameVerdict(t, data)
		}
	})
}
