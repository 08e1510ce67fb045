package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

const oneRule = "- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n"

// TestBytes is about files that are odd below YAML.
func TestBytes(t *testing.T) {
	const good = "a.yaml:3:3 d.a: 1 per DAY\n"
	tests := []struct{ name, data, want string }{
		{"UTF-8 mark", "\ufeffdomain: d\ndescriptors:\n" + oneRule, good},
		{"UTF-16, little end first", utf16(false, "domain: d\ndescriptors:\n"+oneRule), good},
		{"UTF-16, big end first", utf16(true, "domain: d\ndescriptors:\n"+oneRule), good},
		{
			"UTF-16, a wrong unit", utf16(true, "domain: d\ndescriptors:\n- key: é\n  rate_limit: {unit: née}\n"),
			"a.yaml:4:22: unit \"née\" is not known; write second, minute, hour, day, week, month or year\n",
		},
		{
			"UTF-16, only the mark", "\xff\xfe",
			"a.yaml:1:1: the domain is missing or empty; add `domain: <name>`, the name that callers ask for\n",
		},
		{"UTF-16, half a character", "\xff\xfea", "a.yaml: not YAML: incomplete UTF-16 character; save the file as UTF-8\n"},
		{
			"UTF-16, half a pair", "\xff\xfe\x00\xdc",
			"a.yaml: not YAML: unexpected low surrogate area; save the file as UTF-8\n",
		},
		{"not UTF-8 at once", "\x80domain: d\n", "a.yaml:1:1: the text is not UTF-8; save the file as UTF-8\n"},
		{
			"not UTF-8", "domain: d\ndescriptors:\n- key: \"é\xff\"\n",
			"a.yaml:3:11: the text is not UTF-8; save the file as UTF-8\n",
		},
		{"not UTF-8 at the end", "domain: d\n\xc3", "a.yaml:2:1: the text is not UTF-8; save the file as UTF-8\n"},
		{"not UTF-8 in a remark", "domain: d # caf\xe9\n", "a.yaml:1:16: the text is not UTF-8; save the file as UTF-8\n"},
		{
			"a NUL", "domain: d\ndescriptors:\n- key: a\x00\n",
			"a.yaml:3:9: not YAML: control characters are not allowed; remove the character, or write it as \"\\x00\"\n",
		},
		{"only a NUL", "\x00", "a.yaml:1:1: not YAML: control characters are not allowed; remove the character, or write " +
			"it as \"\\x00\"\n"},
		{
			"a NUL, escaped", "domain: d\ndescriptors:\n- {key: \"a\\0\", rate_limit: {unit: day, requests_per_unit: 1}}\n",
			"a.yaml:3:3 d.a\x00: 1 per DAY\n",
		},
		{"lines that end with CR LF", strings.ReplaceAll("domain: d\ndescriptors:\n"+oneRule, "\n", "\r\n"), good},
		{"lines that end with CR", strings.ReplaceAll("domain: d\ndescriptors:\n"+oneRule, "\n", "\r"), good},
		{
			"an error behind CR LF", "domain: d\r\ndescriptors:\r\n- key: a\r\n  rate_limit: {unit: x}\r\n",
			"a.yaml:4:22: unit \"x\" is not known; write second, minute, hour, day, week, month or year\n",
		},
		{"no newline at the end", strings.TrimSuffix("domain: d\ndescriptors:\n"+oneRule, "\n"), good},
		{"a tab first", "\tdomain: d\n", "a.yaml:1:1: not YAML: found character that cannot start any token; indent with blanks, not with tabs, and put text that begins with @, % or ` in quotes\n"},
		{"a tab as indentation", "domain: d\ndescriptors:\n\t- key: a\n", "a.yaml:3:1: not YAML: found character that cannot start any token; indent with blanks, not with tabs, and put text that begins with @, % or ` in quotes\n"},
		{"tabs between", "domain:\td\t\ndescriptors:\t# here\n" + strings.ReplaceAll(oneRule, ", ", ",\t"), good},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := outcome([]filerules.File{{Name: "a.yaml", Data: []byte(test.data)}}, compile.Options{}); got != test.want {
				t.Errorf("got:\n%swant:\n%s", got, test.want)
			}
		})
	}
}

func utf16(bigEndFirst bool, s string) string {
	var b strings.Builder
	for _, r := range "\ufeff" + s { // of the basic plane
		if bigEndFirst {
			b.Write([]byte{byte(r >> 8), byte(r)})
		} else {
			b.Write([]byte{byte(r), byte(r >> 8)})
		}
	}
	return b.String()
}

// billionLaughs returns nine maps under one key; each refers to the one before nine times.
func billionLaughs(key string) string {
	var b strings.Builder
	item := "x"
	for c := 'a'; c <= 'i'; c++ {
		nine := strings.TrimSuffix(strings.Repeat("key: "+item+", ", 9), ", ")
		fmt.Fprintf(&b, "%s: &%c {%s}\n", key, c, nine)
		item = "*" + string(c) + " "
	}
	return b.String()
}
