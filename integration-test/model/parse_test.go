package model

import (
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/testbed/testfiles"
)

const wellWritten = `# all there is
store split

rules
  a: fixed_window 3/1m0s
  b none shadow 50%: gcra 3/1m30s burst 0 interval 2s local + sliding_window 5/1h0m0s interval 1.5s deny
  c: concurrency 3 hold 30s deny
  d: fixed_window 5/2week zone Europe/Berlin starts monday hold 1m0s release + fixed_window 5/1month zone UTC anchor 15
at 1.5s
ask c=1@x | c=1@x:settle*0 d=2@y:release d=2@z*-1
ask a=1 b=2*3 # a comment
ask a=1*0 | b=1*-2 b=1 | x=9
rules
fault lost
fault none
`

func TestParse(t *testing.T) {
	s, err := Parse("x", wellWritten)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer("# all there is\n", "", "\n\n", "\n", " # a comment", "").Replace(wellWritten)
	if got := s.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"  a: fixed_window 1/1m", "x:1: an indented line that follows no rules"},
		{"store disk", `x:1: the store "disk"`},
		{"store memory\nrules\n  a: fixed 1/1m", `x:3: "fixed 1/1m" is no limit`},
		{"rules\n  a: fixed_window 1/1.5s", "x:2: 1.5s is no window of fixed_window"},
		{"rules\n  a: fixed_window -1/1m", `"-1" is not a limit`},
		{"rules\n  a: fixed_window 1/1m burst 2", `"burst" is not counting`},
		{"rules\n  a none: gcra 1/1m counting", "cannot be counting"},
		{"rules\n  a: gcra 1/1m burst", `"burst" is not counting`},
		{"rules\n  a: gcra 1/1m + gcra 2/1m", "would share a counter"},
		{"rules\n  a loud: gcra 1/1m", `"loud" is not none`},
		{"rules\n  probe: gcra 1/1m", "is no rule"},
		{"rules\n  a: gcra 1/1m\n  a: gcra 1/1m", "two rules"},
		{"rules\n  a: concurrency 3", "has no hold"},
		{"rules\n  a: concurrency 3/1m hold 30s", "is no window of concurrency"},
		{"rules\n  a: fixed_window 3/1m release", "has no hold"},
		{"rules\n  a: gcra 3/1m hold 30s counting", "beside a hold there is no"},
		{"rules\n  a: gcra 3/1month zone UTC", `"1month" is not a duration`},
		{"rules\n  a: fixed_window 3/1month zone UTC", "one of months an anchor"},
		{"rules\n  a: fixed_window 3/1day zone Nowhere", `"Nowhere" is no time zone`},
		{"rules\n  a: fixed_window 3/1month zone UTC anchor 30", `"30" is no anchor`},
		{"rules\n  a: fixed_window 3/1week zone UTC starts today", `"today" is not one of`},
		{"ask a=1@", `"a=1@" is no descriptor`},
		{"ask a=1@x:keep", "is neither settle"},
		{"ask a=1@x:settle*-1", "is neither settle"},
		{"at -1s", `"-1s" is not a duration`},
		{"at 1ns", `"1ns" is not a duration`},
		{"ask", "a request of 0 descriptors"},
		{"ask a=1 |", "a request of 0 descriptors"},
		{"ask a", `"a" is no descriptor`},
		{"ask a=1*x", `"x" is not an amount`},
		{"ask a=1*9999999", "is not an amount"},
		{"fault fire", `the fault "fire"`},
		{"wait 1s", `"wait" is no step`},
		{"at", "is no step"},
	} {
		_, err := Parse("x", tt.text)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", tt.text, err, tt.want)
		}
	}
}

// FuzzParse: what is printed reads as the same, and what was read is printed and
// played without harm.
func FuzzParse(f *testing.F) {
	f.Add(wellWritten)
	for seed := range uint64(5) {
		f.Add(Random(seed, cans[seed].Can).String())
	}
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text := testfiles.Read(f, file)
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("x", text)
		if err != nil {
			return
		}
		printed := s.String()
		again, err := Parse("x", printed)
		if err != nil {
			t.Fatalf("%v in what was printed:\n%s", err, printed)
		}
		if got := again.String(); got != printed {
			t.Fatalf("printed as\n%s\nand then as\n%s", printed, got)
		}
		for i := range s.Steps {
			if st := &s.Steps[i]; st.Rules != nil {
				checkYAML(t, st.Rules)
			}
		}
	})
}
