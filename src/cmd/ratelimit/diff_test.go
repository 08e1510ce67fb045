package main

import (
	"strings"
	"testing"
)

func TestDiffCommand(t *testing.T) {
	t.Chdir(simulateFiles(t, map[string]string{
		"old/a.yaml":   simulateRules,
		"same/a.yaml":  "# with a comment\n" + simulateRules,
		"new/a.yaml":   strings.Replace(simulateRules, "unit: 2", "unit: 1", 1),
		"bad/a.yaml":   "domain: d\ndescriptors:\n  - {kez: ip}\n",
		"two.jsonl":    simulateLine + simulateLine,
		"bad.jsonl":    simulateLine + "x\n",
		"answer.jsonl": strings.Replace(simulateLine, `{"at"`, `{"answer":"maybe","at"`, 1),
	}))
	for _, tt := range []struct {
		args string
		code int
		out  string // is in the output
		err  string // is in the error output
	}{
		{"old same", 0, "no change\n", ""},
		{"old new", 1, "1 rule tightened\n< tightened d.ip (new/a.yaml:3:5)\n", ""},
		{"old/a.yaml new/a.yaml --exit-zero", 0, "2 per year -> 1 per year (tighter)", ""},
		{"old new --requests two.jsonl", 1, "2 requests replayed: 1 get another answer (1 refused now, 0 allowed now)", ""},
		{"old new --requests -", 1, "1 request replayed: 0 get another answer; refused before: 0, now: 0", ""},
		{"old same --requests two.jsonl", 0, "no change\n\n2 requests replayed: 0 get", ""},
		{"old new --format json", 1, `"change": "tightened"`, ""},
		{"old new --format markdown --requests two.jsonl", 1, "| tightened | `d.ip` | `2 per year` | `1 per year` |", ""},
		{"old new --key-format v2", 1, "tightened", ""},

		{"old bad", 2, "", "error: bad/a.yaml:3:6: unknown key \"kez\"; did you mean `key`?\n"},
		{"none new", 2, "", "error: none: "},
		{"old new --requests bad.jsonl", 2, "", "bad.jsonl:2: the line is not JSON"},
		{
			"old new --requests answer.jsonl", 2, "",
			`answer.jsonl:1: "answer" is "maybe"; write "OK", "OVER_LIMIT" or "ERROR", or leave it out`,
		},
		{"old new --requests none.jsonl", 2, "", "diff: open none.jsonl"},
		{"old", 2, "", "diff: accepts 2 arg(s), received 1"},
		{"old new --format html", 2, "", "--format html: write text, markdown or json"},
		{"old new --key-format v3", 2, "", "--key-format v3: write v1 or v2"},
		{"old new --top -1", 2, "", "--top -1: write 0 to 1000"},
		{"old new --memory-max-bytes 1", 2, "", "--memory-max-bytes 1: write 131072 or more"},
		{"old new --what", 2, "", "diff: unknown flag: --what"},
	} {
		code, out, errOut := callWithInput(t, simulateLine,
			append([]string{"ratelimit", "diff"}, strings.Fields(tt.args)...)...)
		if code != tt.code || !strings.Contains(out, tt.out) || !strings.Contains(errOut, tt.err) {
			t.Errorf("%s: exit %d\n%s%s\nwant exit %d, %s\n%s", tt.args, code, out, errOut, tt.code, tt.out, tt.err)
		}
	}
}
