//go:build !race

package filerules

import (
	"bytes"
	"fmt"
	"testing"

	"ratelimit/src/rules/compile"
)

// A large file has its problems where they are, and is read whatever is in it.
func TestLargeFile(t *testing.T) {
	t.Parallel()
	const items = 20_000
	list := func(bad int, with string) []byte {
		var b bytes.Buffer
		b.WriteString("domain: d\ndescriptors:\n")
		for i := range items {
			item := fmt.Sprintf("- key: user\n  value: user-%d\n  rate_limit: {unit: day, requests_per_unit: 1}\n", i)
			if i == bad {
				item = with
			}
			b.WriteString(item)
		}
		return b.Bytes()
	}
	const bad = 15_000
	at := fmt.Sprintf("a.yaml:%d", 3+3*bad)
	for _, tt := range []struct{ with, want string }{
		{"- key: user\n  value: other\n", ""},
		{"- {key: a, kex: &x b}\n", at + ":12: unknown key \"kex\"; did you mean `key`?"},
		{
			"- key: user\n  value: user-1\n",
			at + ":3: descriptor \"user_user-1\" is already defined at a.yaml:6:3, on the same level; remove one, or join " +
				"their limits and descriptors",
		},
		{"- key: @\n", at + ":8: not YAML: found character that cannot start any token; indent with blanks, not with tabs, and put text that begins with @, % or ` in quotes"},
		{"- {key: &x a}\n- {key: *x, value: b}\n", ""},
	} {
		set, _, err := Load([]File{{Name: "a.yaml", Data: list(bad, tt.with)}}, compile.Options{})
		if got := fmt.Sprint(err); err != nil && got != tt.want || err == nil && tt.want != "" {
			t.Errorf("%q:\n got %s\nwant %s", tt.with, got, tt.want)
		}
		if err == nil && len(set.Rules()) != items-1 {
			t.Errorf("%q: %d rules, want %d", tt.with, len(set.Rules()), items-1)
		}
	}
}
