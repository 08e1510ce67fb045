package datafile

import (
	"bytes"
	"encoding/csv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// naiveParse reads a file with encoding/csv, line by line, into a map from the values to their limits.
func naiveParse(text string, kind Kind) map[string]string {
	values, first := make(map[string]string), true
	text = strings.TrimPrefix(text, "\ufeff")
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if strings.Trim(line, " \t") == "" || line[0] == '#' {
			continue
		}
		switch {
		case kind == Values && line[0] != '"':
			values[line] = ""
			continue
		case kind == Values:
			line += ","
		}
		r := csv.NewReader(strings.NewReader(line))
		r.LazyQuotes = line[0] != '"'
		fields, err := r.Read()
		if err != nil {
			continue // The text has a CR, which encoding/csv takes for a line break.
		}
		if first && kind == Limits && isLimitName(fields[1]) {
			first = false
			continue
		}
		first = false
		values[fields[0]] = strings.Trim(strings.Join(fields[1:], ","), " \t,")
	}
	return values
}

// isLimitName reports whether a name has a word of limitWords, which an underscore, a large letter or anything else
// that is no letter ends.
func isLimitName(name string) bool {
	if strings.ContainsAny(name, "0123456789") {
		return false
	}
	word := ""
	for i := range len(name) + 1 {
		c := byte(' ')
		if i < len(name) {
			c = name[i]
		}
		isUpper, isLower := 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z'
		if goesOn := isLower && (word == "" || len(word) == 1 || word != strings.ToUpper(word)) ||
			isUpper && word == strings.ToUpper(word); !goesOn {
			if slices.Contains(limitWords, strings.ToLower(word)) {
				return true
			}
			word = ""
		}
		if isUpper || isLower {
			word += string(c)
		}
	}
	return false
}

// What is accepted has exactly the values that encoding/csv reads; what is refused says where.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"a\nb\n", "a,1\nb,2,3\n", "\ufeffvalue,requests_per_unit\r\n\"a,\"\"b\",unlimited\r\n", "# x\n\n a", "\"a",
		"a,1\na,1", "a\xff", "\"#\"\nb ", "tenant,limit\na,1", "\"tenant\",\"maxRequests\",burst\na,1,2", "a,none\n",
		"\"Smith, Max\",5\n", "a,10 requests\n",
	} {
		f.Add(text, true)
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, text string, limits bool) {
		kind := Values
		if limits {
			kind = Limits
		}
		bounds := defaultBounds
		bounds.problems = 5
		table, problems := parseWithin("f", []byte(text), kind, bounds, new(Pacer))
		if (table == nil) == (problems == nil) || len(problems) > 6 {
			t.Fatal(table, problems)
		}
		for _, p := range problems {
			if p.Line < 1 || p.Line > 1+strings.Count(text, "\n") || p.Col < 0 || p.Col > len(text)+1 || p.Message == "" ||
				!utf8.ValidString(p.Message) {
				t.Fatalf("%+v", p)
			}
		}
		if table == nil {
			return
		}
		want := naiveParse(text, kind)
		if hasCR := strings.Contains(strings.ReplaceAll(text, "\r\n", "\n"), "\r"); table.Len() != len(want) && !hasCR {
			t.Fatalf("%d values, want %d", table.Len(), len(want))
		}
		for value, text := range want {
			index, found := table.Find([]byte(value))
			if !found || table.Line([]byte(value)) < 1 {
				t.Fatalf("%q is missing", value)
			}
			if kind == Limits {
				l := table.Limits()[index]
				requests, burst, _ := strings.Cut(text, ",")
				n, _ := strconv.ParseUint(strings.Trim(requests, " \t"), 10, 32)
				if b, _ := strconv.ParseUint(strings.Trim(burst, " \t"), 10, 32); uint64(l.Requests) != n || uint64(l.Burst) != b ||
					l.Unlimited != (text == "unlimited") {
					t.Fatalf("%q: %+v, want %s", value, l, text)
				}
			}
			if _, found := table.Find([]byte(value + "\n")); found {
				t.Fatalf("%q is found", value+"\n")
			}
		}
	})
}

// Any set of values that is written as CSV is read back, and nothing else is found.
func FuzzTable(f *testing.F) {
	f.Add([]byte("a\x00b\x00c"), []byte("x"))
	f.Add([]byte("10.0.0.1\x00"+strings.Repeat("long", 30)), []byte("10.0.0.2"))
	f.Fuzz(func(t *testing.T, list, other []byte) {
		values := make(map[string]uint64)
		for i, v := range bytes.Split(list, []byte{0}) {
			if text := strings.ToValidUTF8(strings.Map(dropBreaks, string(v)), ""); text != "" && len(text) < 1000 {
				values[text] = uint64(i * i)
			}
		}
		var file bytes.Buffer
		for v := range maps.Keys(values) {
			file.WriteString(`"` + strings.ReplaceAll(v, `"`, `""`) + `",` + strconv.Itoa(int(values[v])) + "\n")
		}
		table, problems := Parse("f", file.Bytes(), Limits, new(Pacer))
		if problems != nil || table.Len() != len(values) {
			t.Fatal(table, problems)
		}
		for v, requests := range values {
			if index, found := table.Find([]byte(v)); !found || table.Limits()[index].Requests != requests {
				t.Fatalf("%q: %v, %+v", v, found, table.Limits())
			}
		}
		count := 0
		for v, index := range table.All() {
			if requests, has := values[string(v)]; !has || table.Limits()[index].Requests != requests {
				t.Fatalf("%q is there, with %+v", v, table.Limits()[index])
			}
			count++
		}
		if count != len(values) {
			t.Fatalf("%d values, want %d", count, len(values))
		}
		if _, found := table.Find(other); found != hasKey(values, string(other)) {
			t.Fatalf("%q: %v", other, found)
		}
	})
}

func hasKey(values map[string]uint64, v string) bool {
	_, has := values[v]
	return has
}

func dropBreaks(r rune) rune {
	if r == '\n' || r == '\r' {
		return -1
	}
	return r
}
