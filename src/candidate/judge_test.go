package candidate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/candidate"
	"ratelimit/src/limiter"
	"ratelimit/testbed/limitertest"
)

// judgements is a candidate.Recorder that keeps the judgements of the last decision.
type judgements struct {
	list []candidate.Judgement
	text []string // the rule of each difference, too.
}

func (j *judgements) RecordCandidate(_ *limiter.Request, live, next *limiter.Answer, got candidate.Judgement) {
	text := fmt.Sprint(got.Result)
	if d := got.Descriptor; d >= 0 {
		a := next
		if got.Result == candidate.WouldAdmit {
			a = live
		}
		if c := a.Statuses[d].BindingCharge; c != nil {
			text += " " + c.RuleName()
		}
	}
	j.list, j.text = append(j.list, got), append(j.text, text)
}

// take returns the text of the judgements since the last call.
func (j *judgements) take() string {
	text := strings.Join(j.text, ", ")
	j.list, j.text = nil, nil
	return text
}

// Each step has a request, the answer of the live rules, and how the candidate rules would answer.
func TestCandidate(t *testing.T) {
	t.Parallel()
	const two = "{unit: minute, requests_per_unit: 2}"
	const one = "{unit: minute, requests_per_unit: 1}"
	domain := func(text string) string { return "domain: d\n" + text }
	user := func(limit string) string { return domain("descriptors: [{key: user, rate_limit: " + limit + "}]") }
	for _, tt := range []struct {
		name, live, next string
		cfg              candidate.Config
		steps            []string
	}{
		{"a smaller limit", user(two), user(one), candidate.Config{}, []string{
			"user=1", "ok: ok 1/2", "same",
			"user=1", "ok: ok 0/2", "would_deny user",
			"user=1", "over: over 0/2", "same",
			"user=2", "ok: ok 1/2", "same",
			"ip=1", "ok: -", "same",
		}},
		{"a larger limit", user(one), user(two), candidate.Config{}, []string{
			"user=1", "ok: ok 0/1", "same",
			"user=1", "over: over 0/1", "would_admit user",
			"user=1", "over: over 0/1", "same",
		}},
		{
			"another algorithm", user(one), user("{unit: minute, requests_per_unit: 1, algorithm: gcra, burst: 1}"),
			candidate.Config{},
			[]string{
				"user=1", "ok: ok 0/1", "same",
				"user=1", "over: over 0/1", "would_admit user",
				"user=1", "over: over 0/1", "same",
			},
		},
		{"counts of the live limit", user(one), user(two), candidate.Config{SkipsFullCounters: true}, []string{
			"user=1", "ok: ok 0/1", "same",
			"user=1:3", "over: over 0/1", "same",
			"user=1-", "ok: ok 0/1", "same",
			"user=1:0", "over: over 0/1", "same",
		}},
		{"the domain is new", "domain: other\ndescriptors: []", user(one), candidate.Config{}, []string{
			"user=1", "ok: -", "same",
			"user=1", "ok: -", "would_deny user",
		}},
		{"the domain is gone", user(one), "domain: other\ndescriptors: []", candidate.Config{}, []string{
			"user=1", "ok: ok 0/1", "same",
			"user=1", "over: over 0/1", "would_admit user",
		}},
		{"the same rules", user(one), "# comment\n" + user(one), candidate.Config{}, []string{
			"user=1", "ok: ok 0/1", "same",
			"user=1", "over: over 0/1", "same",
		}},
		{
			"an exception", user(one), domain(
				"descriptors: [{key: user, rate_limit: " + one + "}, {key: user, value: bot, rate_limit: " + two + "}]"),
			candidate.Config{},
			[]string{
				"user=bot", "ok: ok 0/1", "same",
				"user=bot user=1", "over: over 0/1, ok 0/1", "would_admit user",
				"user=1", "over: over 0/1", "same",
			},
		},
		{
			"a list", domain(
				"rules: [{match: {path: /pay}, per: [user], rate_limit: " + one + "}, {match: {}, per: [user], rate_limit: " + two + "}]"),
			domain("rules: [{match: {}, per: [user], rate_limit: " + two + "}]"),
			candidate.Config{},
			[]string{
				"path=/pay,user=1", "ok: ok 0/1", "same",
				"path=/pay,user=1", "over: over 0/1", "would_admit path_/pay",
				"path=/,user=1", "ok: ok 1/2", "would_deny default",
				"path=/,user=2", "ok: ok 1/2", "same",
			},
		},
		{
			"a hold needs a name", user(two), user("{algorithm: concurrency, requests_per_unit: 1, hold: 10s, hold_id: id}"),
			candidate.Config{},
			[]string{
				"user=1", "ok: ok 1/2", "would_be_error",
				"user=1,id=a", "ok: -", "same",
				"user=1,id=b", "ok: -", "would_deny user",
				"user=1,id=a,hold=release", "ok: -", "same",
				"user=1,id=b", "ok: -", "same",
			},
		},
		{
			"all or nothing", domain("descriptors: [{key: user, rate_limit: " + two + "}, {key: ip, rate_limit: " + two + "}]"),
			domain("descriptors: [{key: user, rate_limit: " + two + "}, {key: ip, rate_limit: " + one + "}]"),
			candidate.Config{Limiter: limiter.Config{ChargeAllOrNothing: true}},
			[]string{
				"user=1 ip=1", "ok: ok 1/2, ok 1/2", "same",
				"user=1 ip=1", "ok: ok 0/2, ok 0/2", "would_deny ip", // The candidate rules do not charge user=1.
				"user=1", "over: over 0/2", "would_admit user",
			},
		},
		{"shadow mode of all", user(two), user(one), candidate.Config{Limiter: limiter.Config{ShadowMode: true}}, []string{
			"user=1", "ok: ok 1/2", "same",
			"user=1", "ok: ok 0/2", "same",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := new(judgements)
			tt.cfg.Recorder = got
			l, a := start(t, tt.cfg), new(limiter.Answer)
			l.UseRules(load(t, tt.live))
			l.UseCandidate(candidate.Rules{Set: load(t, tt.next)})
			for i := 0; i < len(tt.steps); i += 3 {
				if err := l.Check(t.Context(), parse(tt.steps[i]), a); err != nil {
					t.Fatal(err)
				}
				if answer, judged := brief(a), got.take(); answer != tt.steps[i+1] || judged != tt.steps[i+2] {
					t.Errorf("step %d, %s:\n got %s; %s\nwant %s; %s", i/3+1, tt.steps[i], answer, judged, tt.steps[i+1],
						tt.steps[i+2])
				}
			}
		})
	}
}

// failingStore is a store that does not answer hits on keys that contain a text.
type failingStore struct {
	backend.Backend
	failing string
}

var errDown = errors.New("down")

func (s *failingStore) Take(ctx context.Context, b *backend.Batch) error {
	err := s.Backend.Take(ctx, b)
	for i := range b.Hits {
		if s.failing != "" && bytes.Contains(b.Hits[i].Key, []byte(s.failing)) {
			b.Verdicts[i] = backend.Verdict{Err: errDown}
		}
	}
	return err
}

// A store that does not answer for the candidate is no error of the request. Without an answer for the live rules
// nothing is judged.
func TestCandidateStoreFails(t *testing.T) {
	t.Parallel()
	m := limitertest.Store(t, memory.Config{})
	store, got := &failingStore{Backend: m}, new(judgements)
	l, a := start(t, candidate.Config{Limiter: limiter.Config{Backend: store}, Recorder: got}), new(limiter.Answer)
	l.UseRules(load(t, "domain: d\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 9}}]"))
	l.UseCandidate(candidate.Rules{Set: load(t,
		"domain: d\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 1, count_blocked: false, "+
			"on_store_failure: deny}}]")})
	for _, step := range []struct {
		failing, judged string
		want            error
	}{
		{"", "same", nil},
		{"|candidate", "not_judged", nil},
		{"", "would_deny user", nil},
		{"d_user_1_", "not_judged", limiter.ErrStoreFailed},
		{"", "would_deny user", nil},
	} {
		store.failing = step.failing
		err := l.Check(t.Context(), parse("user=1"), a)
		if judged := got.take(); !errors.Is(err, step.want) || judged != step.judged || err == nil && a.Over {
			t.Errorf("%+v: got %v, %s, over %t", step, err, judged, a.Over)
		}
	}
}

// leasedStore counts the hits of live and of candidate rules by where they are counted.
type leasedStore struct {
	backend.Backend
	live, candidate map[backend.Counting]int
}

func (s *leasedStore) Take(ctx context.Context, b *backend.Batch) error {
	for i := range b.Hits {
		hits := s.live
		if bytes.HasSuffix(b.Hits[i].Key, []byte("|candidate")) {
			hits = s.candidate
		}
		hits[b.Hits[i].Counting]++
	}
	return s.Backend.Take(ctx, b)
}

// Hits of candidate rules are counted exactly, so that no difference comes from a lease. A rule of which only the
// counting changes has no hits of its own.
func TestCandidateLeases(t *testing.T) {
	t.Parallel()
	m := limitertest.Store(t, memory.Config{})
	store, got := &leasedStore{Backend: m}, new(judgements)
	l := start(t, candidate.Config{Limiter: limiter.Config{Backend: store}, Recorder: got})
	const rule = "domain: d\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: %d, counting: %s}}]"
	l.UseRules(load(t, fmt.Sprintf(rule, 9, "leased")))
	for _, step := range []struct {
		requests int
		counting string
		exact    int // the candidate's own hits
	}{{9, "exact", 0}, {5, "leased", 1}, {5, "exact", 1}} {
		store.live, store.candidate = make(map[backend.Counting]int), make(map[backend.Counting]int)
		l.UseCandidate(candidate.Rules{Set: load(t, fmt.Sprintf(rule, step.requests, step.counting))})
		if err := l.Check(t.Context(), parse("user=1"), new(limiter.Answer)); err != nil {
			t.Fatal(err)
		}
		if judged := got.take(); judged != "same" || store.live[backend.Leased] != 1 || store.live[backend.Exact] != 0 ||
			store.candidate[backend.Leased] != 0 || store.candidate[backend.Exact] != step.exact {
			t.Errorf("%+v: %s, live %v, candidate %v", step, judged, store.live, store.candidate)
		}
	}
}

// CheckMany judges each request, and sends the hits of all of them in one batch.
func TestCandidateMany(t *testing.T) {
	t.Parallel()
	got := new(judgements)
	l, m := start(t, candidate.Config{Recorder: got}), limiter.Many{Now: epoch}
	l.UseCandidate(candidate.Rules{Set: candidateOf(t, testRules)})
	for range 2 {
		for _, ask := range []string{"ip=1 ip=1", "gold=1", "ip=1", "ip=2"} {
			addRequest(&m, parse(ask))
		}
		addRequest(&m, &limiter.Request{}) // It has no domain.
		l.CheckMany(t.Context(), &m)
		var answers []string
		for _, item := range m.Items()[:4] {
			answers = append(answers, brief(&item.Answer))
		}
		if is := strings.Join(answers, "; "); is != "ok: ok 1/2, ok 0/2; ok: ok 0/1; over: over 0/2; ok: ok 1/2" &&
			is != "over: over 0/2, over 0/2; over: over 0/1; over: over 0/2; ok: ok 0/2" {
			t.Errorf("got %s", is)
		}
		m.Reset(16)
		m.Now = epoch
	}
	if is, want := got.take(), "same, same, would_admit ip, same, same, would_admit gold, same, same"; is != want {
		t.Errorf("judged %s, want %s", is, want)
	}
}

// Rules and candidates come and go while requests are decided.
func TestCandidateReload(t *testing.T) {
	t.Parallel()
	var count judgedCount
	l := start(t, candidate.Config{Recorder: &count})
	var callers sync.WaitGroup
	for range 2 {
		callers.Go(func() {
			a := new(limiter.Answer)
			for range 2000 {
				if err := l.Check(t.Context(), parse("ip=1 path=/pay,user=x file=/f/1"), a); err != nil {
					t.Error(err)
				}
				a.Reset(16)
			}
		})
	}
	for range 20 {
		l.UseCandidate(candidate.Rules{Set: candidateOf(t, testRules)})
		l.UseRules(load(t, testRules))
		l.UseCandidate(candidate.Rules{})
	}
	callers.Wait()
	before := count.Load()
	if err := l.Check(t.Context(), parse("ip=1"), new(limiter.Answer)); err != nil || count.Load() != before {
		t.Errorf("%v; without a candidate %d requests are judged", err, count.Load()-before)
	}
}
