package push

import (
	"fmt"
	"testing"
)

func TestMogrifierProblems(t *testing.T) {
	tests := []struct {
		name, pattern, rename string
		tags                  map[string]string
		want                  string
	}{
		{"no pattern", "", "n", nil, "statsd: mogrifier L: it has no pattern: write a regular expression that finds the names it is for"},
		{"wrong pattern", "(", "n", nil, "statsd: mogrifier L: pattern \"(\": error parsing regexp: missing closing ): `(`"},
		{"no name", "a", "", nil, "statsd: mogrifier L: it has no name: write the new name, in which $1 is the first group of the pattern"},
		{"no tag key", "a", "n", map[string]string{"": "v"}, `statsd: mogrifier L: a tag with value "v" has no key: write key:value`},
		{
			"no tag value, and no name", "a", "",
			map[string]string{"k": ""},
			"statsd: mogrifier L: it has no name: write the new name, in which $1 is the first group of the pattern\n" +
				`statsd: mogrifier L: tag "k" has no value: write k:value`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := ParseMogrifier("L", tt.pattern, tt.rename, tt.tags); fmt.Sprint(err) != tt.want {
				t.Errorf("\n got %v\nwant %s", err, tt.want)
			}
		})
	}
}

// Names are kept while they are in use, and no longer.
func TestMogrifiedNamesAreForgotten(t *testing.T) {
	n := dogStatsD{mogrifiers: []Mogrifier{mogrifier(t, "^(.)", "$1", nil)}}
	for flush := range 5 {
		n.find("always")
		for i := range 1000 {
			n.find(fmt.Sprint(flush, i))
		}
		n.end(nil)
		if kept := len(n.now) + len(n.old); kept > 2002 {
			t.Fatalf("flush %d: %d names kept", flush, kept)
		}
	}
	if n.find("always").name != "a" {
		t.Error("not mogrified")
	}
}
