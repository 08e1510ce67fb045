package callertext

import (
	"bytes"
	"math/rand/v2"
	"slices"
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
		{entry("a", "b*"), `a="b*"`},
		{entry("a", `C:\x`), `a="C:\\x"`},
		{entry("a b", "", "c", ""), `"a b"=,c`},
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

// What Descriptor writes can be given to commands, unless it was cut.
func TestParseEntries(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	words := []string{"user", "a=b", "a,b", `"`, `"x"`, "*", "al*", " ", "…", "… (2 more)", "é", "\xff", "\n", "\\", "/pay?x=1&y", ""}
	word := func() []byte { return []byte(words[random.IntN(len(words))] + words[random.IntN(len(words))]) }
	for range 10_000 {
		var want []rules.Entry
		for range 1 + random.IntN(4) {
			want = append(want, rules.Entry{Key: append([]byte("k"), word()...), Value: word()})
		}
		text := WholeDescriptor(want)
		got, err := ParseDescriptor(text)
		same := func(a, b rules.Entry) bool { return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) }
		if err != nil || text != Descriptor(want) || !slices.EqualFunc(got, want, same) {
			t.Fatalf("%s: got %s, %v", text, WholeDescriptor(got), err)
		}
		for _, e := range want {
			if parsed, _ := ParseEntries(WholeDescriptor([]rules.Entry{e})); len(parsed) == 1 &&
				bytes.HasSuffix(e.Value, []byte("*")) && !parsed[0].IsQuoted {
				t.Errorf("%q would be a pattern", e.Value)
			}
		}
	}
	long := strings.Repeat("x", 65)
	for text, want := range map[string]string{
		Descriptor([]rules.Entry{{Key: []byte("a"), Value: []byte(long)}}):        "was cut",
		Descriptor([]rules.Entry{{Key: []byte("a"), Value: []byte(long + "\n")}}): "was cut",
		Descriptor(make([]rules.Entry, 20)):                                       "is not that",
		"a=b,… (4 more)":                                                          "was cut",
		strings.Repeat("a=b,", 70) + "c=d…":                                       "was cut",
		"":                                                                        "is not that",
		"a=b,":                                                                    "is not that",
		`a="b`:                                                                    "a closing quote is missing",
		`a="b"c`:                                                                  "write a comma after the closing quote",
	} {
		if got, err := ParseEntries(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %s", text, got, err, want)
		}
	}
	if got, err := ParseEntries(`a=b=c, d, "e f"="g,h"`); err != nil || !slices.Equal(got,
		[]Entry{{"a", "b=c", false}, {"d", "", false}, {"e f", "g,h", true}}) {
		t.Errorf("%+v, %v", got, err)
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

// What a log prints can be given to commands, whatever of it is copied.
func TestParseEntriesOfLog(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`"tenant=acme"`:                "tenant=acme",
		`"user=\"bot,7\""`:             `user="bot,7"`,
		`user=\"bot,7\"`:               `user="bot,7"`,
		`user=\\\"bot,7\\\"`:           `user="bot,7"`, // a log line within JSON
		`"a=b,\"c d\"=\"\\\"\""`:       `a=b,"c d"="\""`,
		`"user"`:                       "user",
		`"a b"="c"`:                    `"a b"=c`,
		`path=C:\temp`:                 `path="C:\\temp"`, // no log has that
		`path="C:\\temp"`:              `path="C:\\temp"`,
		`path=\"C:\\\\temp\"`:          `path="C:\\temp"`,
		"\"a=\\\"b c\\\",d=e\"":        `a="b c",d=e`,
		`a=say \"hi\" twice \`:         `a="say \\\"hi\\\" twice \\"`, // no escape of Go
		`"user=\"bot,7\"",second=here`: `"user=\"bot,7\""=,second=here`,
	} {
		if got, err := ParseDescriptor(text); err != nil || WholeDescriptor(got) != want {
			t.Errorf("%s: got %s, want %s; %v", text, WholeDescriptor(got), want, err)
		}
	}
}
