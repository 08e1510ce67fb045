package integration

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
)

// ruleWithLimit is a rule file with one limit of these fields.
func ruleWithLimit(fields string) string {
	return "domain: d\ndescriptors:\n- {key: a, rate_limit: {" + fields + "}}\n"
}

// ruleWithDescriptors is a rule file with these descriptors.
func ruleWithDescriptors(list string) string { return "domain: d\ndescriptors:\n" + list }

var refusedRules = []struct{ class, file string }{
	{"YAML error: the text is not YAML", "domain: d\ndescriptors: [\n"},
	{"YAML error: a tab indents", "domain: d\ndescriptors:\n\t- key: a\n"},
	{"YAML error: the root is a list", "- domain: d\n"},
	{"YAML error: the root is text", "domain\n"},
	{"YAML error: requests_per_unit is negative", ruleWithLimit("unit: day, requests_per_unit: -1")},
	{"YAML error: requests_per_unit is above 2^48", ruleWithLimit("unit: day, requests_per_unit: 281474976710657")},
	{"YAML error: requests_per_unit is quoted", ruleWithLimit(`unit: day, requests_per_unit: "5"`)},
	{"YAML error: a word for a bool", ruleWithDescriptors("- {key: a, shadow_mode: maybe}\n")},
	{"YAML error: a map for a list", "domain: d\ndescriptors: {key: a}\n"},
	{"YAML error: a scalar for a map", ruleWithDescriptors("- {key: a, rate_limit: second}\n")},
	{"YAML error: a list for metadata", ruleWithDescriptors("- {key: a, metadata: [{key: b}]}\n")},
	{"key not a string: a fraction", ruleWithDescriptors("- {key: a, 0.25: b}\n")},
	{"key not a string: a number", "domain: d\n5: a\n"},
	{"key not a string: yes is a bool", ruleWithDescriptors("- {key: a, yes: b}\n")},
	{"unknown key at the root", "domain: d\nlimits: []\n"},
	{"unknown key in a descriptor", ruleWithDescriptors("- {key: a, values: b}\n")},
	{"unknown key in a rate_limit", ruleWithLimit("unit: day, requests_per_unit: 1, shadow: true")},
	{"unknown key in a replaces entry", ruleWithLimit("unit: day, name: n, replaces: [{names: m}]")},
	{"list of non-maps: descriptors", "domain: d\ndescriptors: [a]\n"},
	{"list of non-maps: replaces", ruleWithLimit("unit: day, name: n, replaces: [m]")},
	{"unsupported value: a fraction as value", ruleWithDescriptors("- {key: a, value: 1.5}\n")},
	{"unsupported value: a fraction as requests_per_unit", ruleWithLimit("unit: day, requests_per_unit: 1.5")},
	{"unsupported value: an integer beyond int64", ruleWithDescriptors("- {key: a, value: 9223372036854775808}\n")},
	{"empty domain: none", "descriptors:\n- key: a\n"},
	{"empty domain: an empty string", "domain: \"\"\n"},
	{"empty domain: an empty file", ""},
	{"empty domain: comments only", "# later\n"},
	{"duplicate domain: the same in two files", "domain: good\n"},
	{"empty key: a descriptor without key", ruleWithDescriptors("- {value: a}\n")},
	{"empty key: below another", ruleWithDescriptors("- {key: a, descriptors: [{key: \"\"}]}\n")},
	{"duplicate composite key: two siblings of one key", ruleWithDescriptors("- key: a\n- key: a\n")},
	{
		"duplicate composite key: two siblings of one key and value",
		ruleWithDescriptors("- {key: a, value: b}\n- {key: a, value: b}\n"),
	},
	{"duplicate composite key: an empty value is none", ruleWithDescriptors("- key: a\n- {key: a, value: \"\"}\n")},
	{"bad unit: missing", ruleWithLimit("requests_per_unit: 1")},
	{"bad unit: not known", ruleWithLimit("unit: decade, requests_per_unit: 1")},
	{"bad unit: unknown", ruleWithLimit("unit: unknown, requests_per_unit: 1")},
	{"bad unit: an empty rate_limit", ruleWithLimit("")},
	{"unlimited with a unit", ruleWithLimit("unlimited: true, unit: day")},
	{"empty replaces entry", ruleWithLimit("unit: day, name: n, replaces: [{name: \"\"}]")},
	{"empty replaces entry: of a rule without a name", ruleWithLimit("unit: day, replaces: [{}]")},
	{"self replace", ruleWithLimit("unit: day, name: n, replaces: [{name: m}, {name: n}]")},
	{"share_threshold without *", ruleWithDescriptors("- {key: a, value: b, share_threshold: true}\n")},
	{"share_threshold without *, and without a value", ruleWithDescriptors("- {key: a, share_threshold: true}\n")},
	{
		"metadata that no Struct can hold",
		ruleWithDescriptors("- {key: a, rate_limit: {unit: day}, metadata: {b: !!binary /w==}}\n"),
	},
}

// Every class of what refuses the whole set of files. A refused set leaves the
// old one in force, is counted, and is logged with the name of the file.
func TestUpstreamRefusedRules(t *testing.T) {
	rules := newRuleDir(t)
	rules.put(t, "good.yaml", "domain: good\ndescriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: 1000}}\n")
	rules.put(t, "bad.yaml", "domain: other\n")
	u := startWith(t, rules)
	used := 0
	stillGood := func(t *testing.T) {
		t.Helper()
		used++
		u.runStep(t, "grpc", "good", used, step{ask: "a", want: fmt.Sprintf("OK %d/1000 YEAR", 1000-used)})
	}
	stillGood(t)
	for _, test := range refusedRules {
		t.Run(test.class, func(t *testing.T) {
			logged := len(u.log(t))
			u.reload(t, func() { u.rules.put(t, "bad.yaml", test.file) }, "config_load_error")
			u.logs(t, logged, "bad.yaml")
			stillGood(t)
		})
	}
	t.Run("differs: other files than the bad one take effect", func(t *testing.T) {
		logged := len(u.log(t))
		u.reload(t, func() {
			u.rules.put(t, "bad.yaml", "domain: d\ndescriptors: 5\n")
		}, "config_load_error")
		u.reload(t, func() {
			u.rules.put(t, "late.yaml", "domain: late\ndescriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: "+
				"5}}\n")
		}, "config_load_error")
		u.runStep(t, "grpc", "late", 1, step{ask: "a", want: "OK 4/5 YEAR"})
		if log := u.log(t)[logged:]; strings.Contains(log, "late.yaml") {
			t.Errorf("the log blames the good file:\n%s", log)
		}
	})
	t.Run("differs: YAML problems are all reported at once with line numbers", func(t *testing.T) {
		logged := len(u.log(t))
		u.reload(t, func() {
			u.rules.put(t, "bad.yaml", "domain: d\ndescriptors:\n- {key: a, value: 1.5}\n- {key: b, rate_limit: {unit: "+
				"decade}}\n")
		}, "config_load_error")
		u.logs(t, logged, "bad.yaml:3:")
		u.logs(t, logged, "bad.yaml:4:")
	})
	t.Run("an accepted reload is swapped in", func(t *testing.T) {
		u.reload(t, func() { u.rules.remove(t, "bad.yaml") }, "config_load_success")
		u.runStep(t, "grpc", "late", 2, step{ask: "a", want: "OK 3/5 YEAR"})
		stillGood(t)
	})
	t.Run("differs: SIGHUP reloads", func(t *testing.T) {
		u.reload(t, func() {
			if err := u.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
		}, "config_load_success")
		stillGood(t)
	})
	t.Run("an empty directory is an accepted configuration with no domains", func(t *testing.T) {
		u.reload(t, func() { u.rules.remove(t, "late.yaml") }, "config_load_success")
		u.reload(t, func() { u.rules.remove(t, "good.yaml") }, "config_load_success")
		u.runStep(t, "grpc", "good", 1, step{ask: "a", want: "OK", counts: "domain_not_found 1"})
	})
}

// logs waits until the log, from that byte on, has the words.
func (p *process) logs(t *testing.T, from int, words string) {
	t.Helper()
	p.until(t, "the log has "+words, func() error {
		if log := p.log(t)[from:]; !strings.Contains(log, words) {
			return fmt.Errorf("it has %q", log)
		}
		return nil
	})
}

// remove takes a file away.
func (d ruleDir) remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(d.files, name)); err != nil {
		t.Fatal(err)
	}
}

// After a refused first configuration the process runs, and the operator can fix it.
func TestUpstreamRefusedAtStart(t *testing.T) {
	rules := newRuleDir(t)
	rules.put(t, "a.yaml", "domain: d\ndescriptors: 5\n")
	u := &upstream{rules: rules, service: runService(t, append(rules.env(), "RUNTIME_DEBOUNCE=10ms")...)}
	u.until(t, "it listens and has read the rules", func() error {
		u.readLog(t)
		if u.service.http == "" || u.debug == "" {
			return errors.New("it does not say where it listens")
		}
		if u.stats(t)[serviceStats+"config_load_error"] == 0 {
			return errors.New("it has counted no config_load_error")
		}
		return nil
	})
	t.Run("differs: with a refused first configuration /json answers 503, and the gRPC port is closed",
		func(t *testing.T) {
			u.runStep(t, "json", "d", 1, step{
				ask: "a", fails: codes.Unavailable,
				service: "call.should_rate_limit.service_error 1",
			})
			if u.readLog(t); u.grpc != "" {
				t.Errorf("the gRPC port is open: %s", u.grpc)
			}
		})
	t.Run("differs: it is unready, and says since when", func(t *testing.T) {
		if status, text := u.healthcheck(t); status != http.StatusInternalServerError ||
			!strings.HasPrefix(text, "no rules are loaded: refused at 20") || strings.Contains(text, "a.yaml") {
			t.Errorf("/healthcheck answers %d %q, want 500 and when the rules were refused", status, text)
		}
	})
	t.Run("domain is checked first, descriptors second, configuration third", func(t *testing.T) {
		u.runStep(t, "json", "d", 1, step{domain: noDomain, ask: "a", fails: codes.InvalidArgument})
		u.runStep(t, "json", "d", 2, step{ask: "", fails: codes.InvalidArgument})
	})
	t.Run("differs: it becomes ready with the first good set", func(t *testing.T) {
		u.reload(t, func() {
			u.rules.put(t, "a.yaml", "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: 5}}\n")
		}, "config_load_success")
		u.awaitReady(t)
		u.dial(t)
		u.runStep(t, "grpc", "d", 1, step{ask: "a", want: "OK 4/5 YEAR"})
		u.until(t, "it is healthy", func() error {
			if status, text := u.healthcheck(t); status != http.StatusOK {
				return fmt.Errorf("/healthcheck answers %d %q", status, text)
			}
			return nil
		})
	})
}
