package callertext

import (
	"strings"
	"testing"

	"ratelimit/src/rules"
)

// Texts of callers are short, on one line, and cannot be taken for others.
func TestDescriptor(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 63)
	entry := func(pairs ...string) (list []rules.Entry) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, rules.Entry{Key: []byte(pairs[i]), Value: []byte(pairs[i+1])})
		}
		return list
	}
	for _, tt := range []struct {
		entries []rules.Entry
		want    string
	}{
		{entry("ip", "10.0.0.1", "path", "/pay?x"), "ip=10.0.0.1,path=/pay?x"},
		{entry("user", ""), "user"},
		{entry("a", "b,c=d"), `a="b,c=d"`},
		{entry("a", "line\nlevel=error msg=x"), `a="line\nlevel=error msg=x"`},
		{entry("a", `say "hi"`), `a="say \"hi\""`},
		{entry("a", "\xff\x00\x1b[31m"), `a="\xff\x00\x1b[31m"`},
		{entry("a", "\u202e"), `a="\u202e"`},
		{entry("é", "ü"), "é=ü"},
		{entry("a", long+"xy"), "a=" + long + "x…"},
		{entry("a", long+"éé"), "a=" + long + "…"},
		{entry("a", long+"x"), "a=" + long + "x"},
		{
			entry(strings.Repeat("k", 1<<20), strings.Repeat("\n", 1<<20)),
			strings.Repeat("k", 64) + `…="` + strings.Repeat(`\n`, 64) + `…"`,
		},
	} {
		if got := Descriptor(tt.entries); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
	var many []string
	for range 20 {
		many = append(many, "k", "v")
	}
	if got := Descriptor(entry(many...)); got != strings.Repeat("k=v,", 16)+"… (4 more)" {
		t.Errorf("20 entries: %s", got)
	}
}

// The key of a counter is short, and on one line.
func TestCounterText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ key, want string }{
		{"d_ip_10.0.0.1_960", "d_ip_10.0.0.1_960"},
		{"d_path_/a b,c=d_0", "d_path_/a b,c=d_0"},
		{"d_a_\n\x1b[31m_0", `"d_a_\n\x1b[31m_0"`},
		{"d_a_\xff_0", `"d_a_\xff_0"`},
		{strings.Repeat("x", 256), strings.Repeat("x", 256)},
		{strings.Repeat("x", 1<<20), strings.Repeat("x", 256) + "…"},
	} {
		if got := CounterKey([]byte(tt.key)); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}
