package overrides

import (
	"reflect"
	"strings"
	"testing"
)

func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text, canonical string
		end             PatternEnd
		entries         int
	}{
		{"user=eve", "user=eve", ExactEnd, 1},
		{"user=eve, action=pay", "user=eve,action=pay", ExactEnd, 2},
		{"user", "user", ExactEnd, 1},
		{"user=al*", "user=al*", PrefixEnd, 1},
		{"user=*", "user=*", PrefixEnd, 1},
		{"user=eve,*", "user=eve,*", MoreEnd, 1},
		{"*", "*", MoreEnd, 0},
		{`user="bot,7"`, `user="bot,7"`, ExactEnd, 1},
		{`user="al*"`, `user="al*"`, ExactEnd, 1},
		{`user="bot,"*`, `user="bot,"*`, PrefixEnd, 1},
		{`user="a\"b"*`, `user="a\"b"*`, PrefixEnd, 1},
		{`"a b"=,c`, `"a b"=,c`, ExactEnd, 2},
		{`"a b"=*`, `"a b"=*`, PrefixEnd, 1},
	} {
		p, err := ParsePattern(tt.text)
		if err != nil || p.End != tt.end || len(p.Entries) != tt.entries || p.String() != tt.canonical {
			t.Errorf("%s: %q %+v %v", tt.text, p, p, err)
			continue
		}
		if again, err := ParsePattern(p.String()); err != nil || !reflect.DeepEqual(again, p) {
			t.Errorf("%s: %+v is read as %+v, %v", tt.text, p, again, err)
		}
	}
	for text, want := range map[string]string{
		"":                                  "write key=value",
		"=eve":                              "write key=value",
		"user=al*,action=pay":               `only the last value may end with *; user="al*" in quotes takes it as it is`,
		"user=al*,*":                        "only the last value may end with *",
		"user=" + strings.Repeat("x", 2000): "have 2004 bytes; at most 1024 are allowed",
		strings.Repeat("x", 1<<20):          "the subject has 1048576 bytes",
		strings.Repeat("k=v,", 32) + "k=v":  "has 33 entries; at most 32",
		`user="eve`:                         "closing quote is missing",
		"user=" + strings.Repeat("x", 64) + "…": "was cut",
	} {
		if p, err := ParsePattern(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %+v, %v; want %s", text, p, err, want)
		}
	}
}

// A pattern that is read is written as a text that is read as the same pattern.
func FuzzPattern(f *testing.F) {
	for _, s := range []string{
		"user=eve", "user=al*", "a=1,b=2,*", `user="bot,"*`, "*", `"a b"=*`, `a="*"`, "a=,*", "a=b,,*", `"x"*`, ` "*"`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePattern(text)
		if err != nil {
			return
		}
		again, err := ParsePattern(p.String())
		if err != nil || again.String() != p.String() || again.End != p.End || !sameEntries(p.Entries, again.Entries) {
			t.Fatalf("%q is %+v, written %q, which is %+v, %v", text, p, p, again, err)
		}
	})
}
