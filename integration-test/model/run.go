package model

import (
	"fmt"
	"time"
)

// Service is the real thing, or something that claims to be like it.
type Service interface {
	// Traits are those of its store.
	Traits() Traits
	// Reload puts a rule file in force, and returns once it is.
	Reload(yaml string) error
	// Ask sends requests at once, at an instant of the script's clock, and returns
	// when all are answered.
	Ask(at time.Time, asks []Ask) []*Answer
	// Fault begins what is wrong with the store, and takes the place of what was. It
	// returns once that is so: after None, once the store is well again and whatever
	// was on its way has arrived.
	Fault(Fault) error
}

// Violation is an answer that cannot be true.
type Violation struct {
	Script  *Script
	Step    int // its index
	Problem string
}

// Error is what was wrong with which step.
func (v *Violation) Error() string {
	step := "the script"
	if v.Step < len(v.Script.Steps) {
		step = fmt.Sprintf("step %d, %q", v.Step+1, v.Script.Steps[v.Step].String())
	}
	return fmt.Sprintf("%s: %s", step, v.Problem)
}

// Report is the violation, and the script up to it.
func (v *Violation) Report() string {
	upTo := *v.Script
	upTo.Steps = upTo.Steps[:min(v.Step+1, len(upTo.Steps))]
	return fmt.Sprintf("%s\n# %s\n", &upTo, v.Problem)
}

// Outcome is what a run was like.
type Outcome struct {
	// Checked is how many answers were held against the model, of Answers in all.
	// The others were about counters that the store may have forgotten, or failed.
	Answers, Checked int
	Failed           int
	// Unchecked is how many steps were too costly.
	Unchecked int
	// Violation ended it; nil: none.
	Violation *Violation
}

// Run plays s. The error is about the service, which did not do what it was told.
func Run(s *Script, service Service) (Outcome, error) {
	ch, begun := newChecker(service.Traits()), time.Now()
	var out Outcome
	ready := false
	for i := range s.Steps {
		st := &s.Steps[i]
		if st.Rules != nil || !ready {
			if err := service.Reload(st.Rules.YAML()); err != nil {
				return out, fmt.Errorf("step %d: %w", i+1, err)
			}
			ch.reload(st.Rules)
			ready = true
		}
		switch {
		case st.Clock:
			ch.clock(st.At)
		case st.Fault != "":
			if err := service.Fault(st.Fault); err != nil {
				return out, fmt.Errorf("step %d: fault %s: %w", i+1, st.Fault, err)
			}
			ch.become(st.Fault)
		case st.Asks != nil:
			answers := service.Ask(Start.Add(time.Duration(ch.at)), st.Asks)
			problem := ch.asked(st.Asks, answers, time.Since(begun))
			out.count(ch, st.Asks, answers)
			if problem != "" {
				out.Violation = &Violation{s, i, problem}
				return out, nil
			}
		}
	}
	return out, nil
}

func (o *Outcome) count(ch *checker, asks []Ask, answers []*Answer) {
	for i, a := range answers {
		o.Answers++
		switch {
		case a.Failed:
			o.Failed++
		case !ch.blindTo(asks[i]):
			o.Checked++
		}
	}
	o.Unchecked = ch.unchecked
}
