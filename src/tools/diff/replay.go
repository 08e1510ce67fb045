package diff

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/rules"
	"ratelimit/src/tools/simulate"
)

// Replay compares the answers of two sets of rules to the requests of a recording. Counters start empty.
type Replay struct {
	Requests uint64 `json:"requests"`
	// OldOver and NewOver count the requests that each side refuses.
	OldOver uint64 `json:"old_over"`
	NewOver uint64 `json:"new_over"`
	Differences
	// Recorded counts the requests with a recorded answer, and AsRecorded those of them that the old rules answer so.
	Recorded   uint64 `json:"recorded"`
	AsRecorded uint64 `json:"as_recorded"`
	// Rules and Subjects are those with most different answers first. OmittedSubjects counts the different answers to
	// subjects that were not counted, because there are too many.
	Rules           []RuleDifference    `json:"rules"`
	Subjects        []SubjectDifference `json:"subjects"`
	OmittedSubjects uint64              `json:"omitted_subjects,omitempty"`
}

// Differences counts requests with different answers.
type Differences struct {
	// NowOver counts the requests that only the new rules refuse, NowOK those that only the old ones do, and Errors those
	// with an error on one side only.
	NowOver uint64 `json:"now_over"`
	NowOK   uint64 `json:"now_ok"`
	Errors  uint64 `json:"errors"`
}

func (d *Differences) total() uint64 { return d.NowOver + d.NowOK + d.Errors }

// add counts a request with the answers old and now, which differ.
func (d *Differences) add(old, now string) {
	switch {
	case old == simulate.AnswerError || now == simulate.AnswerError:
		d.Errors++
	case now == simulate.AnswerOverLimit:
		d.NowOver++
	default:
		d.NowOK++
	}
}

// RuleDifference counts the different answers for which one rule is the reason: the rule that refuses on one side.
// Examples are the first.
type RuleDifference struct {
	Rule string `json:"rule"`
	Differences
	Subjects uint64    `json:"subjects"`
	Examples []Example `json:"examples"`
}

// SubjectDifference counts the different answers to one subject of a rule.
type SubjectDifference struct {
	Rule    string `json:"rule"`
	Subject string `json:"subject"`
	Differences
}

// Example is a request with a different answer.
type Example struct {
	Line    int       `json:"line"` // of the recording.
	At      time.Time `json:"at"`
	Request string    `json:"request"`
	Old     string    `json:"old"`
	New     string    `json:"new"`
}

const (
	maxSubjects        = 100_000 // bounds the subjects with different answers that are counted.
	maxListedSubjects  = 1000    // bounds those in a report.
	maxExamples        = 3       // bounds the examples of a rule.
	maxExampleRequests = 4       // bounds the descriptors of an example.
)

// replayer decides each request of a recording by the old and the new rules.
type replayer struct {
	sides     [2]replaySide
	report    *Replay
	byRule    map[string]*RuleDifference
	bySubject map[subjectKey]*SubjectDifference
}

type subjectKey struct{ rule, subject string }

// replaySide decides by one set of rules, with counters of its own.
type replaySide struct {
	limiter *limiter.Limiter
	memory  *memory.Store
	answer  limiter.Answer
	outcome string // the answer in the words of a recording.
}

func newReplaySide(set *rules.Set, cfg simulate.Config, maxBytes int64) (s replaySide, err error) {
	if s.memory, err = cfg.NewMemory(maxBytes); err != nil {
		return s, err
	}
	s.limiter = limiter.New(limiter.Config{
		Backend: s.memory, EscapeKeys: cfg.EscapeKeys,
		ChargeAllOrNothing: cfg.AllOrNothing,
	})
	s.limiter.UseRules(set)
	return s, nil
}

// decide decides a request at its time. It returns an error that is no answer.
func (s *replaySide) decide(ctx context.Context, r *simulate.RecordedRequest) error {
	err := r.Refusal
	if err == nil {
		req := *r.Request
		req.Now = r.At
		err = s.limiter.Check(ctx, &req, &s.answer)
	}
	if err != nil && !errors.Is(err, limiter.ErrInvalidRequest) {
		return err
	}
	s.outcome = simulate.AnswerOf(s.answer.Over, err)
	return nil
}

// replay decides the requests of cfg.In by both sets of rules, each with at most maxBytes of counters. progress is
// called for each request.
func replay(ctx context.Context, before, after *rules.Set, cfg simulate.Config, maxBytes int64,
	progress func(uint64, time.Time),
) (*Replay, error) {
	r := &replayer{
		report: &Replay{}, byRule: make(map[string]*RuleDifference),
		bySubject: make(map[subjectKey]*SubjectDifference),
	}
	var err error
	for i, set := range []*rules.Set{before, after} {
		if r.sides[i], err = newReplaySide(set, cfg, maxBytes); err != nil {
			return nil, err
		}
	}
	for req, err := range simulate.Requests(ctx, cfg) {
		if err != nil {
			return nil, err
		}
		for i := range r.sides {
			if err := r.sides[i].decide(ctx, &req); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", cfg.Name, req.Line, err)
			}
		}
		r.count(&req)
		progress(r.report.Requests, req.At)
	}
	for i := range r.sides {
		if n := r.sides[i].memory.Stats().EvictedKeys; n > 0 {
			return nil, fmt.Errorf("counters that made room for others: %d, so answers may be wrong; raise --memory-max-bytes",
				n)
		}
	}
	r.sort()
	return r.report, nil
}

// count counts the answers of both sides to req.
func (r *replayer) count(req *simulate.RecordedRequest) {
	old, now, rep := &r.sides[0], &r.sides[1], r.report
	rep.Requests++
	if old.outcome == simulate.AnswerOverLimit {
		rep.OldOver++
	}
	if now.outcome == simulate.AnswerOverLimit {
		rep.NewOver++
	}
	if req.Answer != "" {
		rep.Recorded++
		if req.Answer == old.outcome {
			rep.AsRecorded++
		}
	}
	if old.outcome == now.outcome {
		return
	}
	rule, subject := "", ""
	switch {
	case old.outcome == simulate.AnswerError, now.outcome == simulate.AnswerError:
	case now.outcome == simulate.AnswerOverLimit:
		rule, subject = refusedBy(req.Request, &now.answer)
	default:
		rule, subject = refusedBy(req.Request, &old.answer)
	}
	byRule := r.byRule[rule]
	if byRule == nil {
		byRule = &RuleDifference{Rule: rule, Examples: []Example{}}
		r.byRule[rule] = byRule
	}
	if len(byRule.Examples) < maxExamples {
		byRule.Examples = append(byRule.Examples,
			Example{req.Line, req.At, requestText(req.Request), old.outcome, now.outcome})
	}
	bySubject := r.bySubject[subjectKey{rule, subject}]
	if bySubject == nil && len(r.bySubject) < maxSubjects {
		bySubject = &SubjectDifference{Rule: rule, Subject: subject}
		r.bySubject[subjectKey{rule, subject}] = bySubject
		byRule.Subjects++
	}
	if bySubject == nil {
		bySubject = new(SubjectDifference) // It is not reported.
		rep.OmittedSubjects++
	}
	for _, d := range []*Differences{&rep.Differences, &byRule.Differences, &bySubject.Differences} {
		d.add(old.outcome, now.outcome)
	}
}

// refusedBy returns the rule that refuses the request with the longest wait, and the subject whom it limits. The rule
// of a limit that came with the request is empty.
func refusedBy(req *limiter.Request, a *limiter.Answer) (rule, subject string) {
	i := a.LongestRefusal()
	if i < 0 {
		return "", ""
	}
	entries := req.Descriptors[i].Entries
	if r := a.Statuses[i].BindingCharge.Rule; r != nil {
		rule, entries = callertext.Name(r.FullName), r.AppendCounterEntries(nil, entries)
	}
	return rule, callertext.Descriptor(entries)
}

// requestText returns a request for people: "domain: key=value,key=value + key=value".
func requestText(req *limiter.Request) string {
	if req == nil {
		return ""
	}
	var parts []string
	for i := range req.Descriptors {
		if i == maxExampleRequests {
			parts = append(parts, fmt.Sprintf("%d more", len(req.Descriptors)-i))
			break
		}
		parts = append(parts, callertext.Descriptor(req.Descriptors[i].Entries))
	}
	return callertext.Name(string(req.Domain)) + ": " + strings.Join(parts, " + ")
}

// sort fills the lists of the report.
func (r *replayer) sort() {
	r.report.Rules, r.report.Subjects = []RuleDifference{}, []SubjectDifference{}
	for _, d := range r.byRule {
		r.report.Rules = append(r.report.Rules, *d)
	}
	for _, d := range r.bySubject {
		r.report.Subjects = append(r.report.Subjects, *d)
	}
	slices.SortFunc(r.report.Rules, func(a, b RuleDifference) int {
		return cmp.Or(cmp.Compare(b.total(), a.total()), strings.Compare(a.Rule, b.Rule))
	})
	slices.SortFunc(r.report.Subjects, func(a, b SubjectDifference) int {
		return cmp.Or(cmp.Compare(b.total(), a.total()), strings.Compare(a.Rule, b.Rule),
			strings.Compare(a.Subject, b.Subject))
	})
	r.report.Subjects = r.report.Subjects[:min(len(r.report.Subjects), maxListedSubjects)]
}
