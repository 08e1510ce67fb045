package model

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var (
	script = flag.String("script", "", "TestReplay plays this `file`; from the root of the file system, as tests run in their directory")
	seeds  = flag.Uint64("seeds", 0, "TestRandom plays so many `scripts` on each store; 0: a few")
	seed   = flag.Uint64("seed", 1, "the first `seed` of TestRandom; 0: any")
	during = flag.Duration("during", 0, "TestRandom plays for so `long` if -seeds is 0")
)

// cans are what the stores are tried with, and on how many seeds in a plain test.
var cans = []struct {
	Can
	seeds int
}{
	{Can{Store: "memory", Faults: []Fault{Down, Lost, Stall, Wipe}, Short: true}, 12},
	{Can{Store: "split", Single: true, Faults: []Fault{Down, Lost, Stall}, Short: true}, 8},
	{Can{Store: "fallback", Faults: []Fault{Down, Lost, Stall}, Short: true, Instead: true}, 6},
	{Can{Store: "redis", Faults: []Fault{Down, Lost, Stall, Slow, Reset, Wipe}}, 5},
	{Can{Store: "cached-redis", Faults: []Fault{Down, Lost, Stall, Slow, Reset, Wipe}}, 4},
	{Can{Store: "memcached", Single: true, Faults: []Fault{Down, Lost, Stall, Slow, Reset}, CountingOnly: true}, 4},
}

// TestRandom plays random scripts on all stores. A violation is made small and
// printed as a script; testdata is where such scripts go.
func TestRandom(t *testing.T) {
	first := *seed
	if first == 0 {
		first = rand.Uint64()
	}
	for _, can := range cans {
		t.Run(can.Store, func(t *testing.T) {
			t.Parallel()
			ls := &labs{t: t}
			end := time.Now().Add(*during)
			more := func(n uint64) bool {
				switch {
				case *seeds > 0:
					return n < *seeds
				case *during > 0:
					return time.Now().Before(end)
				}
				return n < uint64(can.seeds)
			}
			var all Outcome
			for n := uint64(0); more(n); n++ {
				out, err := play(Random(first+n, can.Can), ls.open)
				if err != nil {
					t.Fatalf("seed %d: %v", first+n, err)
				}
				if out.Violation != nil {
					t.Errorf("seed %d: %v", first+n, report(t, out.Violation, ls.open))
					return
				}
				all.Answers += out.Answers
				all.Judged += out.Judged
				all.Failed += out.Failed
				all.Unjudged += out.Unjudged
			}
			t.Logf("of %d answers, %d were judged and %d failed; %d steps were too costly", all.Answers, all.Judged, all.Failed, all.Unjudged)
			if all.Judged < all.Answers/2 || all.Unjudged > all.Answers/50 {
				t.Errorf("of %d answers, only %d were judged; %d steps were too costly", all.Answers, all.Judged, all.Unjudged)
			}
		})
	}
}

// report is v as a script that is as small as can be, and the way to play it again.
func report(t *testing.T, v *Violation, open func(*Script) (lab, error)) string {
	fails := func(s *Script) bool {
		out, err := play(s, open)
		return err == nil && out.Violation != nil
	}
	if !fails(v.Script) {
		return fmt.Sprintf("%v; it was right when played once more:\n%s", v, v.Report())
	}
	smallest := Shrink(v.Script, 500, fails)
	if out, err := play(smallest, open); err == nil && out.Violation != nil {
		v = out.Violation
	}
	file, err := os.CreateTemp("", "violation-*.txt")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(smallest.String()); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%v\n%s\ngo test ./src/model -run TestReplay -script %s", v, v.Report(), file.Name())
}

// TestReplay plays the script of -script.
func TestReplay(t *testing.T) {
	if *script == "" {
		t.Skip("-script names none")
	}
	replay(t, *script)
}

// TestScripts plays those of testdata: what was wrong once.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scripts: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { replay(t, file) })
	}
}

func replay(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse(file, string(text))
	if err != nil {
		t.Fatal(err)
	}
	out, err := play(s, (&labs{t: t}).open)
	if err != nil {
		t.Fatal(err)
	}
	if out.Violation != nil {
		t.Errorf("%v\n%s", out.Violation, out.Violation.Report())
	}
}
