package differential

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"ratelimit/testbed/harness"
)

// pair is both programs in one environment.
type pair struct {
	t        *testing.T
	env      environment
	upstream *side
	here     *side
	root     string // RUNTIME_ROOT of both: a symbolic link to the last rules
	domains  int    // how many domains were made
	loads    int    // how many rules were made
}

// trial is one set of rules and the requests for it.
type trial struct {
	rules    *rules
	requests []*request
	next     *rules // in force before the second half of the requests; nil: rules stay
}

// after returns a trial with the requests after the i-th; nil: there are none.
func (tr *trial) after(i int) *trial {
	left := &trial{rules: tr.rules, requests: tr.requests[i+1:]}
	if tr.next != nil && i >= len(tr.requests)/2 {
		left.rules = tr.next
	}
	if len(left.requests) == 0 {
		return nil
	}
	return left
}

// outcome is what a trial showed.
type outcome struct {
	found     []difference
	compared  int    // requests
	rest      *trial // what was not compared because the counters of both differ since then; nil: nothing
	refused   bool   // both refuse the rules
	crashed   bool   // upstream ended
	disturbed bool   // a second ended while a request was answered
}

// difference is one thing that both programs do not do alike.
type difference struct {
	what           string // "load", "rlconfig", "answer", "redis" or "counters", with the place
	upstream, here string
	env            environment
	rules, next    *rules
	domain         string
	request        *request // nil: not of one request
	asked          []*request
	answers        [2]answer // of upstream and this service, to request
	class          *class    // nil: none
}

// sameSecond is the part of a second in which requests are sent.
const sameSecond = 800 * time.Millisecond

// countersWithin bounds the wait for statistics.
const countersWithin = 5 * time.Second

// errCrashed says that upstream has ended.
var errCrashed = errors.New("upstream has ended")

// play plays a trial in a domain of its own.
func (p *pair) play(tr *trial) (out outcome) {
	p.domains++
	domain := fmt.Sprintf("d%d", p.domains)
	out, err := p.tryPlay(tr, domain)
	if errors.Is(err, errCrashed) {
		out.crashed = true
		p.upstream.stop()
		p.putRules("start", &rules{})
		p.upstream.start(p.t, p.root, p.env)
		return out
	}
	if err != nil {
		p.t.Fatalf("%s\n%v\n%s", p.env, err, tr.rules.text(domain))
	}
	return out
}

func (p *pair) tryPlay(tr *trial, domain string) (out outcome, err error) {
	report := func(d difference) (goOn bool) {
		d.env, d.rules, d.next, d.domain = p.env, tr.rules, tr.next, domain
		d.class = classOf(&d)
		out.found = append(out.found, d)
		return d.class != nil && !d.class.diverges
	}
	if err := errors.Join(p.upstream.forget(), p.here.forget()); err != nil {
		return out, err
	}
	if goOn, err := p.reload(tr.rules, domain, &out, report); err != nil || !goOn {
		return out, err
	}
	before := [2]map[string]int64{p.upstream.sink.snapshot(comparedCounters...), p.here.sink.snapshot(comparedCounters...)}
	keys := &keyComparison{expiries: p.env.sameExpiries(), seen: make(map[string]bool)}
	for i, q := range tr.requests {
		if tr.next != nil && i == len(tr.requests)/2 {
			if goOn, err := p.reload(tr.next, domain, &out, report); err != nil || !goOn {
				return out, err
			}
		}
		found, same, err := p.exchange(q, domain, keys)
		if errors.Is(err, errCrashed) && !q.asksWithLimit(noUnit) {
			p.t.Logf("upstream ended at a request that has a unit: %s\n%s", q.text(domain), tr.rules.text(domain))
		}
		if err != nil {
			return out, err
		}
		if out.disturbed = !same; out.disturbed {
			return out, nil
		}
		out.compared++
		for _, d := range found {
			d.request, d.asked = q, tr.requests[:i+1]
			if !report(d) {
				out.rest = tr.after(i)
				return out, nil
			}
		}
	}
	for _, d := range p.compareCounters(before) {
		d.asked = tr.requests
		report(d)
	}
	return out, nil
}

// reload brings rules into force, and reports whether the trial goes on.
func (p *pair) reload(all *rules, domain string, out *outcome, report func(difference) bool) (goOn bool, err error) {
	good, err := p.load(all, domain)
	if err != nil {
		return false, err
	}
	if good[0] != good[1] {
		report(difference{what: "load", upstream: loadText(good[0]), here: loadText(good[1])})
		return false, nil
	}
	if !good[0] {
		out.refused = true
		return false, nil
	}
	found, err := p.compareDumps(domain)
	goOn = err == nil
	for _, d := range found {
		goOn = report(d) && goOn
	}
	return goOn, err
}

func loadText(good bool) string {
	if good {
		return "accepted"
	}
	return "refused"
}

// putRules makes a set of rules the only one.
func (p *pair) putRules(domain string, all *rules) {
	p.t.Helper()
	p.loads++
	version := fmt.Sprintf("%s.%d", p.root, p.loads)
	dir := filepath.Join(version, "ratelimit", "config")
	errs := []error{os.MkdirAll(dir, 0o755)}
	for i, text := range all.files(domain, p.env.has("MERGE_DOMAIN_CONFIG")) {
		errs = append(errs, os.WriteFile(filepath.Join(dir, fmt.Sprintf("rules%d.yaml", i)), []byte(text), 0o600))
	}
	draft := p.root + ".draft"
	errs = append(errs, os.Symlink(version, draft), os.Rename(draft, p.root))
	if p.loads > 2 {
		errs = append(errs, os.RemoveAll(fmt.Sprintf("%s.%d", p.root, p.loads-2)))
	}
	if err := errors.Join(errs...); err != nil {
		p.t.Fatal(err)
	}
}

// load makes both programs read a set of rules, and returns which accept them: upstream and this service.
func (p *pair) load(all *rules, domain string) (good [2]bool, err error) {
	var before [2][2]int64
	sides := []*side{p.upstream, p.here}
	for i, s := range sides {
		before[i][0], before[i][1] = s.loads()
	}
	p.putRules(domain, all)
	for i, s := range sides {
		err := harness.Retry(harness.Deadline, func() error {
			if !s.proc.Alive() {
				if s == p.upstream {
					return harness.Permanent{Err: errCrashed}
				}
				return harness.Permanent{Err: s.proc.Exited()}
			}
			accepted, refused := s.loads()
			good[i] = accepted > before[i][0]
			if accepted+refused == before[i][0]+before[i][1] {
				return fmt.Errorf("%s has not read the rules", s.name)
			}
			return nil
		})
		if err != nil {
			return good, err
		}
	}
	return good, nil
}

// compareDumps returns the differences in what /rlconfig shows.
func (p *pair) compareDumps(domain string) ([]difference, error) {
	theirs, err1 := p.upstream.rlconfig(domain)
	ours, err2 := p.here.rlconfig(domain)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	var found []difference
	for i := range max(len(theirs), len(ours)) {
		a, b := "no line", "no line"
		if i < len(theirs) {
			a = theirs[i]
		}
		if i < len(ours) {
			b = ours[i]
		}
		if a != b {
			found = append(found, difference{what: "rlconfig", upstream: a, here: b})
		}
	}
	return found, nil
}

// exchange sends a request to both programs, and compares the answers and what is in Redis then. same reports whether
// that took place in one second.
func (p *pair) exchange(q *request, domain string, keys *keyComparison) (found []difference, same bool, err error) {
	if early := time.Now().Nanosecond(); early > int(sameSecond) {
		time.Sleep(time.Second - time.Duration(early))
	}
	second := time.Now().Unix()
	var answers [2]answer
	var both errgroup.Group
	for i, s := range []*side{p.upstream, p.here} {
		both.Go(func() (err error) {
			answers[i], err = s.ask(context.Background(), q, domain)
			return err
		})
	}
	if err := both.Wait(); err != nil {
		return nil, false, err
	}
	if answers[0].code != 0 && p.crashed() {
		return nil, false, errCrashed
	}
	theirs, err1 := p.upstream.keys()
	ours, err2 := p.here.keys()
	if err := errors.Join(err1, err2); err != nil {
		return nil, false, err
	}
	if time.Now().Unix() != second {
		return nil, false, nil
	}
	found = append(compareAnswers(answers[0], answers[1]), keys.compare(theirs, ours)...)
	for i := range found {
		found[i].answers = answers
	}
	return found, true, nil
}

// crashed reports whether upstream has ended, or does so soon.
func (p *pair) crashed() bool {
	for range 20 {
		if !p.upstream.proc.Alive() {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

// compareCounters waits until the counters of both programs moved alike, or returns how they differ.
func (p *pair) compareCounters(before [2]map[string]int64) []difference {
	var theirs, ours map[string]int64
	err := harness.Retry(countersWithin, func() error {
		theirs = moved(before[0], p.upstream.sink.snapshot(comparedCounters...))
		ours = moved(before[1], p.here.sink.snapshot(comparedCounters...))
		if !maps.Equal(theirs, ours) {
			return errors.New("they differ")
		}
		return nil
	})
	if err == nil {
		return nil
	}
	names := slices.Sorted(maps.Keys(theirs))
	for name := range ours {
		if _, both := theirs[name]; !both {
			names = append(names, name)
		}
	}
	var found []difference
	for _, name := range names {
		if theirs[name] != ours[name] {
			found = append(found, difference{
				what: "counters " + name, upstream: fmt.Sprint(theirs[name]),
				here: fmt.Sprint(ours[name]),
			})
		}
	}
	return found
}
