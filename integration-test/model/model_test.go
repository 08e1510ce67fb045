package model

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

var (
	script = flag.String("script", "",
		"TestReplay plays this `file`; from the root of the file system, as tests run in their directory")
	seeds  = flag.Uint64("seeds", 0, "TestRandom plays so many `scripts` on each store; 0: a few")
	seed   = flag.Uint64("seed", 1, "the first `seed` of TestRandom; 0: any")
	during = flag.Duration("during", 0, "TestRandom plays for so `long` if -seeds is 0")
)

func TestMain(m *testing.M) {
	harness.RunAtOnce(4)
	os.Exit(m.Run())
}

// cans are what the stores are tried with, and on how many seeds in a plain test.
var cans = []struct {
	Can
	seeds int
}{
	{Can{Store: "memory", Faults: []Fault{Down, Lost, Stall, Wipe}, Short: true, Holds: true, Percents: true}, 12},
	{Can{Store: "split", Single: true, Faults: []Fault{Down, Lost, Stall}, Short: true, Holds: true, Percents: true}, 8},
	{Can{
		Store: "fallback", Faults: []Fault{Down, Lost, Stall}, Short: true, Fallback: true, Holds: true,
		Percents: true,
	}, 6},
	{Can{Store: "redis", Faults: []Fault{Down, Lost, Stall, Slow, Reset, Wipe}, Holds: true, Percents: true}, 5},
	{Can{
		Store: "cached-redis", Single: true, Faults: []Fault{Down, Lost, Stall, Slow, Reset, Wipe}, Holds: true,
		Percents: true,
	}, 4},
	{Can{
		Store: "replicas", Faults: []Fault{Down, Lost, Stall, Slow, Reset, Wipe, Crash, Crash, Crash}, Holds: true,
		AllHeld: true, Percents: true,
	}, 4},
	{Can{
		Store: "memcached", Single: true, Faults: []Fault{Down, Lost, Stall, Slow, Reset}, CountingOnly: true,
		Percents: true,
	}, 4},
}

func firstSeed() uint64 {
	if *seed == 0 {
		return rand.Uint64()
	}
	return *seed
}

// enough says whether there are to be more than so many schedules; in a plain test
// there are few.
func enough(few int) (more func(n uint64) bool) {
	end := time.Now().Add(*during)
	return func(n uint64) bool {
		switch {
		case *seeds > 0:
			return n < *seeds
		case *during > 0:
			return time.Now().Before(end)
		}
		return n < uint64(few)
	}
}

// TestRandom plays random scripts on all stores. A violation is made small and
// printed as a script; testdata is where such scripts go.
func TestRandom(t *testing.T) {
	first := firstSeed()
	for _, can := range cans {
		t.Run(can.Store, func(t *testing.T) {
			t.Parallel()
			ls := &labs{t: t}
			more := enough(can.seeds)
			var all Outcome
			for n := uint64(0); more(n); n++ {
				out, err := play(Random(first+n, can.Can), ls.open)
				if err != nil {
					t.Fatalf("seed %d: %v", first+n, err)
				}
				if v := out.Violation; v != nil {
					if !again(v.Script, ls.open) {
						t.Logf("seed %d, not seen again: %v\n%s", first+n, v, v.Report())
						continue
					}
					t.Errorf("seed %d: %v", first+n, report(t, v, ls.open))
					return
				}
				all.Answers += out.Answers
				all.Checked += out.Checked
				all.Failed += out.Failed
				all.Unchecked += out.Unchecked
			}
			t.Logf("of %d answers, %d were checked and %d failed; %d steps were too costly", all.Answers, all.Checked,
				all.Failed, all.Unchecked)
			if all.Checked < all.Answers/2 || all.Unchecked > all.Answers/50 {
				t.Errorf("of %d answers, only %d were checked; %d steps were too costly", all.Answers, all.Checked, all.Unchecked)
			}
		})
	}
}

// again plays a script that was violated once more, a few times, and says whether it
// was violated in any of them. A busy machine makes a real store too slow to answer
// now and then, which is no violation, and not seen twice.
func again(s *Script, open func(*Script) (lab, error)) bool {
	for range 5 {
		if out, err := play(s, open); err == nil && out.Violation != nil {
			return true
		}
	}
	return false
}

// shrinkFor is how long a violation is made smaller.
const shrinkFor = time.Minute

// report is v as a script that is as small as can be, and the way to play it again:
// the script is in a file, one for each store, from the first on.
func report(t *testing.T, v *Violation, open func(*Script) (lab, error)) string {
	file := filepath.Join(os.TempDir(), fmt.Sprintf("ratelimit-model-%s.txt", v.Script.Store))
	save := func(v *Violation) {
		if err := os.WriteFile(file, []byte(v.Report()), 0o600); err != nil {
			t.Error(err)
		}
	}
	save(v)
	command := fmt.Sprintf("go test ./integration-test/model -run TestReplay -script %s", file)
	tries, end, news := 0, time.Now().Add(shrinkFor), time.Now()
	Shrink(v.Script, 500, func(s *Script) bool {
		if time.Now().After(end) {
			return false
		}
		tries++
		out, err := play(s, open)
		fails := err == nil && out.Violation != nil
		if fails {
			v = out.Violation
			save(v)
		}
		if time.Since(news) > 5*time.Second {
			news = time.Now()
			t.Logf("%d smaller scripts were tried, %d steps are left", tries, len(v.Script.Steps))
		}
		return fails
	})
	return fmt.Sprintf("%v\n%s\n%s", v, v.Report(), command)
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
	text := testfiles.Read(t, file)
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
