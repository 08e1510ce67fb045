package differential

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

const (
	upstreamPackage = "github.com/envoyproxy/ratelimit/src/service_cmd"
	upstreamVersion = "v1.4.1-0.20260122083618-3fb702589d36"

	// perEnvironment is how many sets of rules are played in one environment, which costs the start of two programs.
	perEnvironment = 25
	// shownFailures is how many differences without a class end the test.
	shownFailures = 25
)

// tally counts what the test did.
type tally struct {
	trials, requests, refused, crashes, disturbed, diverged int
	classes                                                 map[string]int
	// kinds of differences without a class, each shown once
	failures map[string]bool
}

// TestDifferential plays sets of rules on both programs.
func TestDifferential(t *testing.T) {
	if !*full {
		t.Skip("this needs envoyproxy/ratelimit: make differential")
	}
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{
		t:        t,
		root:     filepath.Join(t.TempDir(), "current"),
		upstream: newSide(t, "upstream", harness.GoProgram(t, upstreamPackage, upstreamVersion)),
		here:     newSide(t, "here", path, "RUNTIME_DEBOUNCE=1ms", "DEBUG_TOKEN="),
	}
	sum := &tally{classes: make(map[string]int), failures: make(map[string]bool)}
	for n := 0; n*perEnvironment < *configurations; n++ {
		if *environmentNo < 0 || *environmentNo == n {
			p.playEnvironment(n, sum)
		}
		if len(sum.failures) >= shownFailures {
			t.Errorf("%d kinds of differences have no class; the rest is not played", len(sum.failures))
			break
		}
	}
	sum.log(t)
}

// playEnvironment starts both programs in the n-th environment, and plays its sets of rules.
func (p *pair) playEnvironment(n int, sum *tally) {
	p.env = randomEnvironment(randomFor(n, 0))
	p.putRules("start", &rules{})
	for _, s := range []*side{p.upstream, p.here} {
		s.start(p.t, p.root, p.env)
	}
	for i := range min(perEnvironment, *configurations-n*perEnvironment) {
		r := randomFor(n, i+1)
		tr := &trial{rules: randomRules(r)}
		tr.requests = randomRequests(r, tr.rules)
		if one(r, 4) && tr.rules.mistakes() == "" {
			if next := tr.rules.changed(r); next.text("") != tr.rules.text("") { // this service does not count rules that stay
				tr.next = next
			}
		}
		sum.add(p, n, tr)
	}
	for _, s := range []*side{p.upstream, p.here} {
		s.stop()
	}
}

// playsOfDisturbed is how often a trial that a second's end disturbed is played.
const playsOfDisturbed = 3

// add plays a trial, and counts and shows what it found. After a difference that is meant, and after which the
// counters of both programs differ, the rest is played in another domain.
func (s *tally) add(p *pair, n int, tr *trial) {
	s.trials++
	for tr != nil {
		tr = s.addPart(p, n, tr)
	}
}

// addPart is add for the part up to such a difference, and returns the rest.
func (s *tally) addPart(p *pair, n int, tr *trial) (rest *trial) {
	var out outcome
	for range playsOfDisturbed {
		if out = p.play(tr); !out.disturbed {
			break
		}
	}
	s.requests += out.compared
	for flag, count := range map[bool]*int{out.refused: &s.refused, out.crashed: &s.crashes, out.disturbed: &s.disturbed} {
		if flag {
			*count++
		}
	}
	if len(out.found) > 0 || out.crashed {
		time.Sleep(100 * time.Millisecond) // the next trial must not see the counters of this one
	}
	for _, d := range out.found {
		if d.class != nil {
			s.classes[d.class.name]++
			continue
		}
		if kind := d.kind(); !s.failures[kind] {
			s.failures[kind] = true
			p.t.Errorf("environment %d of seed %d: no class explains this:\n%s", n, *seed, p.shrink(tr, d))
		}
	}
	if out.rest != nil {
		s.diverged++
	}
	return out.rest
}

// kind names what differs, without numbers and names of the trial.
func (d *difference) kind() string {
	kind := strings.ReplaceAll(d.what, d.domain, "$domain")
	switch {
	case strings.HasPrefix(kind, "counters "):
		return "counters " + kind[strings.LastIndexByte(kind, '.')+1:]
	case strings.HasPrefix(kind, "redis "):
		return "redis"
	case d.what == "load":
		return d.what + " " + d.upstream + d.rules.mistakes()
	}
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, kind)
}

// mistakes returns the mistakes of the rules.
func (all *rules) mistakes() string {
	text := all.mistake
	all.walk(func(d *descriptor) {
		text += d.mistake
		if d.limit != nil {
			text += d.limit.mistake
		}
	})
	return text
}

func (d *difference) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n  upstream: %s\n  here:     %s\n", d.what, d.upstream, d.here)
	if d.request != nil {
		fmt.Fprintf(&b, "answers to the last request\n  upstream: %s\n  here:     %s\n", d.answers[0], d.answers[1])
	}
	fmt.Fprintf(&b, "environment: %s\nrules:\n%s", d.env, d.rules.text(d.domain))
	if d.next != nil {
		fmt.Fprintf(&b, "rules of the second half:\n%s", d.next.text(d.domain))
	}
	for i, q := range d.asked {
		fmt.Fprintf(&b, "request %d: %s\n", i+1, q.text(d.domain))
	}
	return b.String()
}

func (s *tally) log(t *testing.T) {
	t.Logf("%d sets of rules (%d refused by both) and %d requests were compared; counters differed %d times after a "+
		"difference that is meant, upstream "+
		"ended at %d requests, and %d sets were disturbed by the clock", s.trials, s.refused, s.requests, s.diverged,
		s.crashes, s.disturbed)
	names := slices.SortedFunc(maps.Keys(s.classes),
		func(a, b string) int { return cmp.Compare(s.classes[b], s.classes[a]) })
	for _, name := range names {
		t.Logf("%6d %s", s.classes[name], name)
	}
}
