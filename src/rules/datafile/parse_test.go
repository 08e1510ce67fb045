package datafile

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func gzipped(t testing.TB, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// lines returns the values of want with their lines and limits, as the table has them.
func lines(table *Table, want []string) (got []string) {
	for _, w := range want {
		value, _, _ := strings.Cut(w, " = ")
		limit, found := table.Find([]byte(value))
		switch {
		case !found:
			got = append(got, value+" is missing")
		case table.Limits() == nil:
			got = append(got, fmt.Sprintf("%s = line %d", value, table.Line([]byte(value))))
		default:
			l := table.Limits()[limit]
			text := fmt.Sprintf("%s = line %d: %d", value, table.Line([]byte(value)), l.Requests)
			if l.Unlimited {
				text = fmt.Sprintf("%s = line %d: unlimited", value, table.Line([]byte(value)))
			}
			if l.HasBurst {
				text += fmt.Sprintf(" burst %d", l.Burst)
			}
			got = append(got, text)
		}
	}
	return got
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		kind Kind
		text string
		want []string
	}{
		"values":        {Values, "a\nb\n", []string{"a = line 1", "b = line 2"}},
		"no last break": {Values, "a\nb", []string{"a = line 1", "b = line 2"}},
		"CRLF and BOM":  {Values, "\ufeffa\r\n\r\nb\r\n", []string{"a = line 1", "b = line 3"}},
		"comments":      {Values, "# x\n\n  \na#b\n#\nc # d\n", []string{"a#b = line 4", "c # d = line 6"}},
		"commas":        {Values, "a,b\n", []string{"a,b = line 1"}},
		"quotes": {
			Values, "\"#a\"\n\" b \"\n\"say \"\"hi\"\"\"\na\"b\n",
			[]string{"#a = line 1", " b  = line 2", `say "hi" = line 3`, `a"b = line 4`},
		},
		"empty":  {Values, "", nil},
		"limits": {Limits, "a,1\nb,2\nc,1\n", []string{"a = line 1: 1", "b = line 2: 2", "c = line 3: 1"}},
		"header": {
			Limits, "# x\nvalue,requests_per_unit,burst\na, 1 , 2\nb,3,\n",
			[]string{"a = line 3: 1 burst 2", "b = line 4: 3"},
		},
		"own header":        {Limits, "tenant,limit\na,1\n", []string{"a = line 2: 1"}},
		"quoted header":     {Limits, "\"Tenant\", \"maxRequests\",\"Burst\"\na,1\n", []string{"a = line 2: 1"}},
		"name of a rate":    {Limits, "id,RPM\nlimit,1\n", []string{"limit = line 2: 1"}},
		"a name, no header": {Limits, "\"Smith, Max\",5\n", []string{"Smith, Max = line 1: 5"}},
		"unlimited": {
			Limits, "a,unlimited\nb,0\nc,281474976710656,0\n",
			[]string{"a = line 1: unlimited", "b = line 2: 0", "c = line 3: 281474976710656 burst 0"},
		},
		"value = name":  {Limits, "a,1\nvalue,2\n", []string{"a = line 1: 1", "value = line 2: 2"}},
		"quoted limits": {Limits, "\"a,b\",1\n\"\"\"\",2\n", []string{"a,b = line 1: 1", `" = line 2: 2`}},
		"no limits":     {Limits, "# none\n", nil},
		"long values": {
			Values, strings.Repeat("x", 300) + "\n" + strings.Repeat("y", 49),
			[]string{strings.Repeat("x", 300) + " = line 1", strings.Repeat("y", 49) + " = line 2"},
		},
	} {
		for _, file := range []string{"f.txt", "f.gz"} {
			data := []byte(tt.text)
			if file == "f.gz" {
				data = gzipped(t, tt.text)
			}
			table, problems := Parse(file, data, tt.kind, new(Pacer))
			if problems != nil {
				t.Errorf("%s, %s: %v", name, file, problems)
				continue
			}
			want := slices.Clone(tt.want)
			if got := lines(table, want); !slices.Equal(got, want) || table.Len() != len(want) {
				t.Errorf("%s, %s: %d values, %q; want %q", name, file, table.Len(), got, want)
			}
			for _, other := range []string{"", "x", "# x", "value", "A"} {
				if _, found := table.Find([]byte(other)); found != slices.ContainsFunc(want,
					func(w string) bool { return strings.HasPrefix(w, other+" = ") }) {
					t.Errorf("%s: %q is found: %v", name, other, found)
				}
			}
		}
	}
}

func TestParseProblems(t *testing.T) {
	t.Parallel()
	small := bounds{textBytes: 100, lines: 5, lineBytes: 30, distinctLimits: 2, problems: 3}
	for _, tt := range []struct {
		file string
		kind Kind
		text string
		want []string // "line:col: message"
	}{
		{"f", Values, "a\nb\na\n", []string{`3:1: "a" is in line 1 already`}},
		{"f", Values, "a \n\tb\n", []string{
			`1:1: the value begins or ends with a blank: "a "`,
			`2:1: the value begins or ends with a blank: "\tb"`,
		}},
		{"f", Values, "\"a\n", []string{"1:1: the quote is not closed"}},
		{"f", Values, "\ufeff\"a\" b\n", []string{`1:7: text after the closing quote: " b"`}},
		{"f", Values, "\"\"\n", []string{"1:1: the value is empty"}},
		{"f", Values, "a\xff\n", []string{`1:1: the value is not UTF-8: "a\xff"`}},
		{"f", Values, strings.Repeat("x", 31) + "\n", []string{"1:0: a line is longer than 30 bytes"}},
		{"f", Values, strings.Repeat("x", 30) + "\r\n", nil},
		{"f", Values, "1\n2\n\n\n\n6", []string{"6:0: has more than 5 lines"}},
		{"f", Values, strings.Repeat("aaaaaaaaaaaaaaaaaaaaaaaa\n", 5), []string{"4:0: has more than 100 bytes of text"}},
		{"f", Values, " a\n b\n c\n d\n", []string{
			`1:1: the value begins or ends with a blank: " a"`, `2:1: the value begins or ends with a blank: " b"`,
			`3:1: the value begins or ends with a blank: " c"`, "3:0: more lines may have problems: reading stopped here",
		}},
		{"f", Values, "a\na\na\na\na\n", []string{
			`2:1: "a" is in line 1 already`, `3:1: "a" is in line 1 already`, `4:1: "a" is in line 1 already`,
			"4:0: more lines may have problems: reading stopped here",
		}},
		{"f", Limits, "a\n", []string{`1:2: the line has no limit: "a"`}},
		{"f", Limits, "a,\n", []string{"1:3: requests_per_unit is missing"}},
		{"f", Limits, "a,x\n,1\n", []string{`1:3: requests_per_unit is not a whole number: "x"`, "2:1: the value is empty"}},
		{
			"f", Limits, "a,-1\nb,281474976710657\n",
			[]string{
				`1:3: requests_per_unit is not a whole number: "-1"`,
				`2:3: requests_per_unit is out of range: "281474976710657"`,
			},
		},
		{
			"f", Limits, "a,1,x\n\"b,\",22,3,4\n",
			[]string{`1:5: burst is not a whole number: "x"`, `2:9: burst is not a whole number: "3,4"`},
		},
		{"f", Limits, "a,1,281474976710656\n", []string{`1:5: burst is out of range: "281474976710656"`}},
		{"f", Limits, "a,unlimited,1\n", []string{"1:13: unlimited and burst exclude each other"}},
		{"f", Limits, "\"a\"1\n", []string{"1:4: no comma after the closing quote"}},
		{"f", Limits, "a,none\nb,limit\n", []string{
			`1:3: requests_per_unit is not a whole number: "none"`, `2:3: requests_per_unit is not a whole number: "limit"`,
		}},
		{"f", Limits, "a,10 requests\n", []string{`1:3: requests_per_unit is not a whole number: "10 requests"`}},
		{"f", Limits, "tenant,limit,note\na,1\n", []string{
			`1:0: a file of limits has the columns value, requests_per_unit and burst, not "note"`,
		}},
		{"f", Limits, "a,1\nb,2\nc,3\n", []string{"3:0: has more than 2 different limits"}},
		{"f.gz", Values, "a\n", []string{"0:0: is not compressed by gzip: unexpected EOF"}},
	} {
		_, problems := parseWithin(tt.file, []byte(tt.text), tt.kind, small, new(Pacer))
		var got []string
		for _, p := range problems {
			got = append(got, fmt.Sprintf("%d:%d: %s", p.Line, p.Col, p.Message))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q: %q; want %q", tt.text, got, tt.want)
		}
	}
}

// Compressed files that are cut off, damaged, or far larger than they look.
func TestParseHostileGzip(t *testing.T) {
	t.Parallel()
	bounds := defaultBounds
	bounds.textBytes, bounds.lines = 1<<20, 10_000
	good := gzipped(t, strings.Repeat("a value\n", 10)+strings.Repeat("b\n", 1000))
	for name, tt := range map[string]struct {
		data []byte
		want string
	}{
		"cut off": {good[:len(good)/2], "the compressed text breaks off or is damaged: unexpected EOF"},
		"damaged": {
			append(slices.Clone(good[:len(good)-8]), "12345678"...),
			"the compressed text breaks off or is damaged: gzip: invalid checksum",
		},
		"one long line": {gzipped(t, strings.Repeat("x", 2<<20)), "a line is longer than 4096 bytes"},
		"empty lines":   {gzipped(t, strings.Repeat("\n", 2<<20)), "has more than 10000 lines"},
		"long text": {
			gzipped(t, strings.Repeat("#"+strings.Repeat("x", 4000)+"\n", 300)),
			"has more than 1048576 bytes of text",
		},
		"behind the text": {
			append(slices.Clone(good), "x"...),
			"the compressed text breaks off or is damaged: unexpected EOF",
		},
	} {
		table, problems := parseWithin("f.gz", tt.data, Values, bounds, new(Pacer))
		if table != nil || len(problems) == 0 || problems[len(problems)-1].Message != tt.want {
			t.Errorf("%s: %v; want %s", name, problems, tt.want)
		}
	}
}

// Values of all lengths, most of them short, so that some are in cells and some are not.
func TestTableOfManyLengths(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 8, 20, 48, 60, 400} {
		var b strings.Builder
		for i := range 1000 {
			fmt.Fprintf(&b, "%s%d,%d\n", strings.Repeat("v", i%most), i, i%300)
		}
		table, problems := Parse("f", []byte(b.String()), Limits, new(Pacer))
		if problems != nil {
			t.Fatal(problems)
		}
		for i := range 1000 {
			value := fmt.Appendf(nil, "%s%d", strings.Repeat("v", i%most), i)
			if limit, found := table.Find(value); !found || int(table.Limits()[limit].Requests) != i%300 ||
				table.Line(value) != i+1 {
				t.Fatalf("%d, %s: %d, %v, line %d", most, value, limit, found, table.Line(value))
			}
			if _, found := table.Find(append(value, 'x')); found {
				t.Fatalf("%d: %sx is found", most, value)
			}
		}
	}
}

func TestFindAllocatesNothing(t *testing.T) {
	table, _ := Parse("f", []byte("a,1\nb,2\n"+strings.Repeat("c", 100)+",3\n"), Limits, new(Pacer))
	values := [][]byte{[]byte("a"), []byte("x"), bytes.Repeat([]byte("c"), 100)}
	if n := testing.AllocsPerRun(100, func() {
		for _, v := range values {
			table.Find(v)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
