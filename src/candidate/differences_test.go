package candidate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
)

func load(tb testing.TB, text string) *rules.Set {
	tb.Helper()
	set, _, err := filerules.Load([]filerules.File{{Name: "test.yaml", Data: []byte(text)}}, rules.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return set
}

// service is a limiter whose candidate rules a Tracker counts.
type service struct {
	tb testing.TB
	*Tracker
	decider         *limiter.Limiter
	live, candidate *rules.Set
}

func newService(tb testing.TB, cfg Config, live, candidate string) *service {
	tb.Helper()
	store, err := memory.New(memory.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	s := &service{tb: tb, Tracker: New(cfg), live: load(tb, live)}
	s.decider = limiter.New(limiter.Config{Backend: store, Candidates: s.Tracker})
	s.decider.UseRules(s.live)
	s.use(candidate)
	return s
}

// use judges other candidate rules.
func (s *service) use(candidate string) {
	s.tb.Helper()
	s.candidate = load(s.tb, candidate)
	s.Tracker.UseRules(s.live, s.candidate)
	s.decider.UseCandidate(limiter.Candidate{Set: s.candidate})
}

// ask sends a request with a descriptor key=value for each word.
func (s *service) ask(words string, independent bool) {
	s.tb.Helper()
	req := &limiter.Request{Domain: []byte("d"), IndependentDescriptors: independent, Protocol: limiter.ProtocolGRPC}
	for word := range strings.FieldsSeq(words) {
		key, value, _ := strings.Cut(word, "=")
		d := limiter.Descriptor{Entries: []rules.Entry{{Key: []byte(key), Value: []byte(value)}}}
		if key == "own" {
			d.HasLimit, d.Limit = true, rules.Rate{Requests: 0, Unit: rules.UnitDay, UnitMultiplier: 1}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	if err := s.decider.Check(s.tb.Context(), req, new(limiter.Answer)); err != nil {
		s.tb.Error(err)
	}
}

// report has the rules with differences, such as "d.ip deny=1 admit=2".
func (s *service) report() string {
	var list []string
	for _, r := range s.Rules() {
		text := strings.TrimPrefix(r.Domain+" ", "d ") + r.Rule
		for _, result := range Results {
			if n := r.Counts[result]; n > 0 {
				text += fmt.Sprintf(" %v=%d", result, n)
			}
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}

const (
	liveRules = `
domain: d
descriptors:
  - {key: ip, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: call, rate_limit: {unit: day, requests_per_unit: 1}}
`
	candidateRules = `
domain: d
descriptors:
  - {key: ip, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: call, rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 10s, hold_id: id}}
`
)

// Each step has a request and the differences after it.
func TestDifferences(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{}, liveRules, candidateRules)
	for _, step := range []struct {
		ask         string
		independent bool
		want        string
	}{
		{"ip=1 user=1", false, ""},
		{"ip=1", false, "d.ip would_deny=1"},
		{"ip=1", false, "d.ip would_deny=1"}, // Both refuse.
		{"user=1", false, "d.ip would_deny=1; d.user would_admit=1"},
		{"call=1", false, "d.call would_be_error=1; d.ip would_deny=1; d.user would_admit=1"},
		{"ip=2 ip=2 ip=2 user=2 user=2 none=1", true, "d.ip would_deny=2; d.user would_admit=2; d.call would_be_error=1"},
		{"own=1 ip=3", false, "d.ip would_deny=2; d.user would_admit=2; d.call would_be_error=1"}, // The limit of the request refuses under both.
	} {
		if s.ask(step.ask, step.independent); s.report() != step.want {
			t.Errorf("%s: got %s, want %s", step.ask, s.report(), step.want)
		}
	}
	if got, want := fmt.Sprint(s.Results()), "map[not_judged:0 not_sampled:0 same:7 would_admit:2 would_be_error:1 would_deny:2]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if list := s.Figures(); len(list) != 3 || list[0].Value != 2 || strings.Join(list[0].Labels, " ") != "domain d rule ip result would_deny" {
		t.Errorf("got %+v", list)
	}
	s.use(strings.Replace(candidateRules, "{key: call", "{key: other", 1)) // A rule that is gone has no differences; the others keep theirs.
	if got, want := s.report(), "d.call would_be_error=1; d.ip would_deny=2; d.user would_admit=2"; len(got) != len(want) {
		t.Errorf("after a reload: %s", got)
	}
	s.Reset()
	if got := s.report(); got != "" || s.Results()["same"] != 0 {
		t.Errorf("after a reset: %s, %v", got, s.Results())
	}
	s.ask("ip=1", false)
	s.Tracker.UseRules(nil, nil)
	if got := s.report(); got != "" {
		t.Errorf("without rules: %s", got)
	}
}

// Subjects and examples tell whom the differences concern. They are off if the configuration says so.
func TestSubjectsAndExamples(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{}, {SubjectRules: 1000, Examples: 1}} {
		s := newService(t, cfg, liveRules, candidateRules)
		for range 2 {
			s.ask("ip=1", false)
			s.ask("ip=2 none=2", false)
			s.ask("user=1", false)
			s.ask("call=1", false)
		}
		got := ""
		for _, result := range Results {
			for _, subject := range s.Subjects(time.Now(), result, 10) {
				got += fmt.Sprintf("%v %s %s %.0f; ", result, subject.Rule, subject.Text, subject.Hits)
			}
			for _, e := range s.Examples(result, 10) {
				got += fmt.Sprintf("%v: %s %s %s; ", result, e.Rule, e.Descriptor, e.Protocol)
			}
		}
		want := ""
		if cfg.Examples > 0 {
			want = "would_deny d.ip ip=1 1; would_deny d.ip ip=2 1; would_deny: d.ip ip=2 grpc; " +
				"would_admit d.user user=1 1; would_admit: d.user user=1 grpc; would_be_error: d.call call=1 grpc; "
		}
		if got != want {
			t.Errorf("%+v:\n got %s\nwant %s", cfg, got, want)
		}
	}
}

// Rules beyond MaxRules share one line.
func TestRulesAreBounded(t *testing.T) {
	t.Parallel()
	var live, candidate strings.Builder
	for _, b := range []*strings.Builder{&live, &candidate} {
		b.WriteString("domain: d\ndescriptors:\n")
	}
	const many = MaxRules + 100
	for i := range many {
		fmt.Fprintf(&live, "  - {key: k%d, rate_limit: {unit: day, requests_per_unit: 5}}\n", i)
		fmt.Fprintf(&candidate, "  - {key: k%d, rate_limit: {unit: day, requests_per_unit: 0}}\n", i)
	}
	s := newService(t, Config{}, live.String(), candidate.String())
	for range 2 {
		for i := range many {
			s.ask(fmt.Sprintf("k%d=1", i), false)
		}
		s.use(candidate.String())
	}
	list := s.Rules()
	if len(list) != MaxRules+1 || list[0].Rule != OtherRules || list[0].Counts[limiter.WouldDeny] != 200 || list[1].Counts[limiter.WouldDeny] != 2 {
		t.Errorf("%d rules, the first %+v", len(list), list[0])
	}
	if list := s.Figures(); len(list) != MaxRules+1 {
		t.Errorf("%d figures", len(list))
	}
}

// Requests and reloads may come at the same time.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{SubjectRules: 2, Examples: 2}, liveRules, candidateRules)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 500 {
			s.ask("ip=1 user=1", false)
			s.ask("user=2", false)
		}
	}()
	for i := range 50 {
		s.use(candidateRules)
		s.Rules()
		s.Examples(limiter.WouldDeny, 5)
		s.Subjects(time.Now(), limiter.WouldDeny, 5)
		if i%10 == 0 {
			s.Reset()
		}
	}
	<-done
}
