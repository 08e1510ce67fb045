package diff

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"ratelimit/src/candidate"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/rules"
	"ratelimit/src/tools/simulate"
)

// Replay compares the answers of two sets of rules to the requests of a recording. Counters start empty.
type Replay struct {
	Requests uint64 `json:"requests"`
	OldOver  uint64 `json:"old_over"` // the requests that the old rules refuse
	NewOver  uint64 `json:"new_over"`
	Differences
	Recorded   uint64 `json:"recorded"`    // the requests with a recorded answer
	AsRecorded uint64 `json:"as_recorded"` // those of them that the old rules answer so
	// Rules and Subjects are those with most different answers first. OmittedSubjects counts the different answers to
	// subjects that were not counted, because there are too many.
	Rules           []RuleDifference    `json:"rules"`
	Subjects        []SubjectDifference `json:"subjects"`
	OmittedSubjects uint64              `json:"omitted_subjects,omitempty"`
}

// Differences counts requests with different answers.
type Differences struct {
	NowOver uint64 `json:"now_over"` // Only the new rules refuse them.
	NowOK   uint64 `json:"now_ok"`   // Only the old rules refuse them.
	Errors  uint64 `json:"errors"`   // They are errors on one side only.
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

// RuleDifference counts different answers by the rule that refuses on one side. Examples are the first ones.
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

// replayer decides the requests of a recording by the old rules, and judges the new ones as candidate rules.
type replayer struct {
	judge *candidate.Judge
	// newRules decides requests that are invalid by the old rules. It has the store of judge.
	newRules  *limiter.Limiter
	request   *simulate.Line // the request that is decided
	answer    limiter.Answer
	report    *Replay
	byRule    map[string]*RuleDifference
	bySubject map[subjectKey]*SubjectDifference
}

type subjectKey struct{ rule, subject string }

// replay decides the requests of cfg.In by both sets, each with at most maxBytes of counters. It calls progress.
func replay(ctx context.Context, before, after *rules.Set, cfg simulate.Config, maxBytes int64,
	progress func(uint64, time.Time),
) (*Replay, error) {
	store, err := cfg.NewMemory(2 * min(maxBytes, math.MaxInt64/2))
	if err != nil {
		return nil, err
	}
	r := newReplayer(before, after, limiter.Config{
		Backend: store, EscapeKeys: cfg.EscapeKeys, ChargeAllOrNothing: cfg.AllOrNothing,
	})
	for line, err := range simulate.Lines(ctx, cfg) {
		if err != nil {
			return nil, err
		}
		if line.Lost > 0 {
			continue
		}
		r.request = line
		if err := r.decide(ctx); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", cfg.Name, line.Number, err)
		}
		progress(r.report.Requests, line.At)
	}
	if err := simulate.CheckEvictions(store); err != nil {
		return nil, err
	}
	r.sort()
	return r.report, nil
}

func newReplayer(before, after *rules.Set, cfg limiter.Config) *replayer {
	r := &replayer{
		newRules: limiter.New(cfg), report: &Replay{}, byRule: make(map[string]*RuleDifference),
		bySubject: make(map[subjectKey]*SubjectDifference),
	}
	r.newRules.UseRules(after)
	r.judge = candidate.New(candidate.Config{Limiter: cfg, Recorder: r})
	r.judge.UseRules(before)
	r.judge.UseCandidate(candidate.Rules{Set: after})
	return r
}

// decide decides the current request by both sets of rules. It returns an error that is no answer.
//
// A request with several descriptors that only one set finds invalid counts on the counters that both sets share.
func (r *replayer) decide(ctx context.Context) error {
	oldErr := r.request.Refusal
	newErr := oldErr
	if oldErr == nil {
		req := *r.request.Request
		req.Now = r.request.At
		if oldErr = r.judge.Check(ctx, &req, &r.answer); oldErr == nil {
			return nil // RecordCandidate has counted the answers.
		}
		newErr = oldErr
		if errors.Is(oldErr, limiter.ErrInvalidRequest) {
			newErr = r.newRules.Check(ctx, &req, &r.answer)
		}
	}
	if newErr != nil && !errors.Is(newErr, limiter.ErrInvalidRequest) {
		return newErr
	}
	r.count(simulate.AnswerError, simulate.AnswerOf(newErr == nil && r.answer.Over, newErr), "", "")
	return nil
}

// RecordCandidate implements candidate.Recorder.
func (r *replayer) RecordCandidate(req *limiter.Request, live, next *limiter.Answer, j candidate.Judgement) {
	old, rule, subject := simulate.AnswerOf(live.Over, nil), "", ""
	now := old
	switch j.Result {
	case candidate.WouldDeny:
		now = simulate.AnswerOverLimit
		rule, subject = refusedBy(req, next, j.Descriptor)
	case candidate.WouldAdmit:
		now = simulate.AnswerOK
		rule, subject = refusedBy(req, live, j.Descriptor)
	case candidate.WouldBeError:
		now = simulate.AnswerError
	}
	r.count(old, now, rule, subject)
}

// count counts the answers to the current request. If they differ, and none is an error, rule is the one that refuses.
func (r *replayer) count(old, now, rule, subject string) {
	req, rep := r.request, r.report
	rep.Requests++
	if old == simulate.AnswerOverLimit {
		rep.OldOver++
	}
	if now == simulate.AnswerOverLimit {
		rep.NewOver++
	}
	if req.Answer != "" {
		rep.Recorded++
		if req.Answer == old {
			rep.AsRecorded++
		}
	}
	if old == now {
		return
	}
	byRule := r.byRule[rule]
	if byRule == nil {
		byRule = &RuleDifference{Rule: rule, Examples: []Example{}}
		r.byRule[rule] = byRule
	}
	if len(byRule.Examples) < maxExamples {
		byRule.Examples = append(byRule.Examples, Example{req.Number, req.At, requestText(req.Request), old, now})
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
		d.add(old, now)
	}
}

// refusedBy returns the rule that refuses descriptor i, empty for a limit of the request, and the limited subject.
func refusedBy(req *limiter.Request, a *limiter.Answer, i int) (rule, subject string) {
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

func (r *replayer) sort() {
	r.report.Rules = values(r.byRule)
	r.report.Subjects = values(r.bySubject)
	slices.SortFunc(r.report.Rules, func(a, b RuleDifference) int {
		return cmp.Or(cmp.Compare(b.total(), a.total()), strings.Compare(a.Rule, b.Rule))
	})
	slices.SortFunc(r.report.Subjects, func(a, b SubjectDifference) int {
		return cmp.Or(cmp.Compare(b.total(), a.total()), strings.Compare(a.Rule, b.Rule),
			strings.Compare(a.Subject, b.Subject))
	})
	r.report.Subjects = r.report.Subjects[:min(len(r.report.Subjects), maxListedSubjects)]
}

func values[K comparable, V any](m map[K]*V) []V {
	list := make([]V, 0, len(m))
	for _, v := range m {
		list = append(list, *v)
	}
	return list
}
