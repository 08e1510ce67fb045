package divvy

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/rules"
)

// show is what parse makes of a line, in one: pairs in Go's quotes, or the ERR.
func show(entries []rules.Entry, f *pipeline.Fault) string {
	if f != nil {
		return string(appendFault(nil, f))
	}
	var parts []string
	for _, e := range entries {
		parts = append(parts, fmt.Sprintf("%q=%q", e.Key, e.Value))
	}
	return strings.Join(parts, " ")
}

func TestParse(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{`HIT`, ``},
		{`HIT `, ``},
		{`HIT a=b`, `"a"="b"`},
		{`hit a=b`, `"a"="b"`},
		{`Hit  a=b	c=d `, `"a"="b" "c"="d"`},
		{`"HIT" a=b`, `"a"="b"`},
		{`"hit"a=b`, `"a"="b"`},
		{`hıt a=b`, `"a"="b"`},
		{`HIT "a"="b c"`, `"a"="b c"`},
		{`HIT a="b=c"`, `"a"="b=c"`},
		{`HIT a=b"c" d"=e`, `"a"="b\"c\"" "d\""="e"`},
		{`HIT a= b=""`, `"a"="" "b"=""`},
		{`HIT =`, `""=""`},
		{`HIT=`, `""=""`},
		{`HIT=x`, `""="x"`},
		{`HIT ""=x`, `""="x"`},
		{`HIT a=1 b=2 a=3`, `"a"="3" "b"="2"`},
		{`HIT __proto__=1 constructor=2`, `"__proto__"="1" "constructor"="2"`},
		{"HIT\u00a0a=1\u2028b=2\u3000c=3\ufeffd=4\u1680e=5\v\f\r", `"a"="1" "b"="2" "c"="3" "d"="4" "e"="5"`},
		{"HIT a=1\u0085b", `"a"="1\u0085b"`}, // is no white space to JavaScript
		{"HIT a=\x00", `"a"="\x00"`},
		{"HIT a=\"\r\"", `"a"="\r"`},
		{`HIT emoji=🍪 ключ="б в"`, `"emoji"="🍪" "ключ"="б в"`},

		{``, `ERR unknown-command "Unrecognized command: "`},
		{`   HIT a=b`, `ERR unknown-command "Unrecognized command: "`},
		{`=`, `ERR unknown-command "Unrecognized command: "`},
		{`eggplant a=b`, `ERR unknown-command "Unrecognized command: EGGPLANT"`},
		{`HITS`, `ERR unknown-command "Unrecognized command: HITS"`},
		{`egg=plant`, `ERR unknown-command "Unrecognized command: EGG"`},
		{`h"i"t`, `ERR unknown-command "Unrecognized command: H"I"T"`},
		{`"egg plant"`, `ERR unknown-command "Unrecognized command: EGG PLANT"`},
		{"\"egg\rplant\"", `ERR unknown-command "Unrecognized command: EGG PLANT"`},
		{`"HIT a=b`, `ERR unknown "Unexpected end of quoted string."`},
		{`HIT "a`, `ERR unknown "Unexpected end of quoted string."`},
		{`HIT a="b`, `ERR unknown "Unexpected end of quoted string."`},
		{`HIT a`, `ERR unknown "Unexpected end of input string."`},
		{`HIT a `, `ERR unknown "Unexpected end of input string."`},
		{`HIT k= v`, `ERR unknown "Unexpected end of input string."`},
		{`HIT "a"`, `ERR unknown "Unexpected end of input string."`},
		{`HIT a b=c`, `ERR unknown "Expected '=', found ' '"`},
		{`HIT "a"b=c`, `ERR unknown "Expected '=', found 'b'"`},
		{`HIT "a""b"=c`, `ERR unknown "Expected '=', found '"'"`},
		{`HIT "a"🍪=c`, `ERR unknown "Expected '=', found '🍪'"`},
		{"HIT a\rb=c", `ERR unknown "Expected '=', found ' '"`},
		{`HIT a="b"c`, `ERR unknown "Expected whitespace, found 'c'"`},
		{`HIT a=b=c`, `ERR unknown "Expected whitespace, found '='"`},
		{`HIT a==c`, `ERR unknown "Expected whitespace, found '='"`},
	} {
		entries, f := parseHit(nil, []byte(tt.line))
		if got := show(entries, f); got != tt.want {
			t.Errorf("%q: got %s, want %s", tt.line, got, tt.want)
		}
		if want := oracle(tt.line); tt.want != want {
			t.Errorf("%q: the oracle says %s, not %s", tt.line, want, tt.want)
		}
	}
}

// What was there before stays: a batch is parsed into one slice.
func TestParseAppends(t *testing.T) {
	entries, f := parseHit(nil, []byte("HIT a=1"))
	if f == nil {
		entries, f = parseHit(entries, []byte("HIT a=2 b=3 b=4"))
	}
	if got := show(entries, f); got != `"a"="1" "a"="2" "b"="4"` {
		t.Error(got)
	}
}

func TestParseManyKeys(t *testing.T) {
	line := []byte("HIT")
	for i := range maxRequestPairs {
		line = fmt.Appendf(line, " %d=", i)
	}
	line = append(line, " 0=again"...)
	if entries, f := parseHit(nil, line); f != nil || len(entries) != maxRequestPairs ||
		string(entries[0].Value) != "again" {
		t.Errorf("%d pairs, %v", len(entries), f)
	}
	if _, f := parseHit(nil, append(line, " more="...)); f != errTooManyPairs {
		t.Errorf("got %v", f)
	}
}

func TestParseDoesNotAllocate(t *testing.T) {
	line, entries := []byte(`hit method=GET path="/pantry/a b" ip=10.0.0.7`), make([]rules.Entry, 0, 8)
	if n := testing.AllocsPerRun(100, func() { _, _ = parseHit(entries, line) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

const blank = `[\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}]`

var (
	blanks = regexp.MustCompile(`^` + blank + `+`)
	bare   = regexp.MustCompile(`^[^=` + blank[1:] + `*$`)
	ends   = regexp.MustCompile(`^` + blank + `+|` + blank + `+$`)
	text   = regexp.MustCompile(`^(?:"([^"]*)"|((?:[^"=` + blank[1:] + `[^=` + blank[1:] + `*)?))`)
)

// oracle is show of parse, slow and plain.
func oracle(line string) string {
	nextText := func() (string, bool) {
		if strings.HasPrefix(line, `"`) && strings.Count(line, `"`) == 1 {
			return "", false
		}
		m := text.FindStringSubmatch(line)
		line = line[len(m[0]):]
		return m[1] + m[2], true
	}
	err := func(code, format string, args ...any) string {
		return "ERR " + code + ` "` + strings.NewReplacer("\r", " ", "\n", " ").Replace(fmt.Sprintf(format, args...)) + `"`
	}
	const unclosed = "Unexpected end of quoted string."
	word, ok := nextText()
	if !ok {
		return err("unknown", unclosed)
	}
	if strings.ToUpper(word) != "HIT" {
		return err("unknown-command", "Unrecognized command: %s", strings.ToUpper(word))
	}
	line = ends.ReplaceAllString(line, "")
	var keys []string
	values := make(map[string]string)
	for line != "" {
		key, ok := nextText()
		switch {
		case !ok:
			return err("unknown", unclosed)
		case line == "":
			return err("unknown", "Unexpected end of input string.")
		case !strings.HasPrefix(line, "="):
			return err("unknown", "Expected '=', found '%c'", []rune(line)[0])
		}
		line = line[1:]
		value, ok := nextText()
		if !ok {
			return err("unknown", unclosed)
		}
		if _, twice := values[key]; !twice {
			keys = append(keys, key)
		}
		values[key] = value
		if len(keys) > maxRequestPairs {
			return err("unknown", "More than %d keys.", maxRequestPairs)
		}
		rest := blanks.ReplaceAllString(line, "")
		if line != "" && rest == line {
			return err("unknown", "Expected whitespace, found '%c'", []rune(line)[0])
		}
		line = rest
	}
	var parts []string
	for _, key := range keys {
		parts = append(parts, fmt.Sprintf("%q=%q", key, values[key]))
	}
	return strings.Join(parts, " ")
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`HIT a=b "c"="d e"`, `"hit" =`, "HIT\u2003a=\"\"\ufeff", `HIT a b`, `HIT a="b"c`,
		`egg plant`, "HIT \xf0\x9f\x8d",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		line = appendValidUTF8(nil, bytes.ReplaceAll(line, []byte("\n"), nil))
		entries, fault := parseHit(nil, line)
		if got, want := show(entries, fault), oracle(string(line)); got != want {
			t.Errorf("%q: got %s, want %s", line, got, want)
		}
		if fault != nil && bytes.ContainsAny(appendFault(nil, fault), "\r\n") {
			t.Errorf("%q: the reply is more than one line: %q", line, fault)
		}
	})
}

// writable is s without what no line can say.
func writable(s string) string {
	return strings.NewReplacer(`"`, "", "\n", "").Replace(strings.ToValidUTF8(s, "\ufffd"))
}

// FuzzRoundTrip writes pairs as clients do and reads them back.
func FuzzRoundTrip(f *testing.F) {
	f.Add("a", "b", "c", "d", true)
	f.Add("", "", "a", "= x", false)
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string, quoted bool) {
		line, want := "HIT", ""
		pairs := []string{writable(k1), writable(v1)}
		if writable(k2) != pairs[0] {
			pairs = append(pairs, writable(k2), writable(v2))
		}
		for i, s := range pairs {
			if quoted || !bare.MatchString(s) {
				line += []string{" ", "="}[i%2] + `"` + s + `"`
			} else {
				line += []string{" ", "="}[i%2] + s
			}
			want += []string{" ", "="}[i%2] + fmt.Sprintf("%q", s)
		}
		entries, fault := parseHit(nil, []byte(line))
		if got := show(entries, fault); " "+got != want {
			t.Errorf("%q: got %s, want %s", line, got, want)
		}
	})
}

func TestAppendValid(t *testing.T) {
	const no = "\ufffd"
	for _, tt := range []struct{ line, want string }{
		{"", ""},
		{"a б 🍪 " + no, "a б 🍪 " + no},
		{"\xff\xfe", no + no},
		{"\x80\xbf", no + no},
		{"\xe2\x82", no},               // breaks off
		{"\xe2\x82a", no + "a"},        // breaks off before a
		{"\xf0\x9f\x8d", no},           // breaks off
		{"\xc0\xaf", no + no},          // a slash in two bytes
		{"\xed\xa0\x80", no + no + no}, // half a pair of UTF-16
		{"\xf4\x91\x92\x93\xff", no + no + no + no + no},
		{"a\xf1\x80\x80\xe1\x80\xc2b\x80c\x80\xbfd", "a" + no + no + no + "b" + no + "c" + no + no + "d"},
	} {
		if got := string(appendValidUTF8([]byte("x"), []byte(tt.line))); got != "x"+tt.want {
			t.Errorf("%q: got %q, want %q", tt.line, got, "x"+tt.want)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	for _, line := range []string{
		`HIT`, `HIT ip=10.0.0.7`,
		`HIT "ip"="10.0.0.7" "method"="GET" "path"="/pantry/cookies"`,
	} {
		b.Run(fmt.Sprintf("bytes=%d", len(line)), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(line)))
			data, entries := []byte(line), make([]rules.Entry, 0, 8)
			for b.Loop() {
				if _, f := parseHit(entries, data); f != nil {
					b.Fatal(f)
				}
			}
		})
	}
}
