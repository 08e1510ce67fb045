package candidate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/candidate"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// service is a limiter whose candidate rules a Tracker counts.
type service struct {
	tb testing.TB
	*candidate.Tracker
	judge *candidate.Judge
	live  *rules.Set
}

func newService(tb testing.TB, cfg candidate.TrackerConfig, live, next string) *service {
	tb.Helper()
	s := &service{tb: tb, Tracker: candidate.NewTracker(cfg), live: load(tb, live)}
	s.judge = start(tb, candidate.Config{Recorder: s.Tracker})
	s.judge.UseRules(s.live)
	s.use(next)
	return s
}

// use judges other candidate rules.
func (s *service) use(next string) {
	s.tb.Helper()
	set := load(s.tb, next)
	s.Tracker.UseRules(s.live, set)
	s.judge.UseCandidate(candidate.Rules{Set: set})
}

// ask sends a request with a descriptor key=value for each word.
func (s *service) ask(words string) {
	s.tb.Helper()
	req := &limiter.Request{Domain: []byte("d"), Protocol: "grpc"}
	for word := range strings.FieldsSeq(words) {
		key, value, _ := strings.Cut(word, "=")
		d := limiter.Descriptor{Entries: []rules.Entry{{Key: []byte(key), Value: []byte(value)}}}
		if key == "own" {
			d.HasLimit, d.Limit = true, rules.Rate{Requests: 0, Unit: rules.UnitDay, UnitMultiplier: 1}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	if err := s.judge.Check(s.tb.Context(), req, new(limiter.Answer)); err != nil {
		s.tb.Error(err)
	}
}

// report has the rules with differences, such as "d.ip deny=1 admit=2".
func (s *service) report() string {
	var list []string
	for _, r := range s.Rules() {
		text := strings.TrimPrefix(r.Domain+" ", "d ") + r.Rule
		for _, result := range candidate.Results {
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
	s := newService(t, candidate.TrackerConfig{}, liveRules, candidateRules)
	for _, step := range []struct {
		ask  string
		want string
	}{
		{"ip=1 user=1", ""},
		{"ip=1", "d.ip would_deny=1"},
		{"ip=1", "d.ip would_deny=1"}, // Both refuse.
		{"user=1", "d.ip would_deny=1; d.user would_admit=1"},
		{"call=1", "d.call would_be_error=1; d.ip would_deny=1; d.user would_admit=1"},
		{"none=1", "d.call would_be_error=1; d.ip would_deny=1; d.user would_admit=1"},
		// The limit of the request refuses under both.
		{"own=1 ip=3", "d.call would_be_error=1; d.ip would_deny=1; d.user would_admit=1"},
	} {
		if s.ask(step.ask); s.report() != step.want {
			t.Errorf("%s: got %s, want %s", step.ask, s.report(), step.want)
		}
	}
	if got, want := fmt.Sprint(s.Results()),
		"map[not_judged:0 not_sampled:0 same:4 would_admit:1 would_be_error:1 would_deny:1]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if list := s.Figures(); len(list) != 3 || list[1].Value != 1 ||
		strings.Join(list[1].Labels, " ") != "domain d rule ip result would_deny" {
		t.Errorf("got %+v", list)
	}
	// A rule that is gone has no differences; the others keep theirs.
	s.use(strings.Replace(candidateRules, "{key: call", "{key: other", 1))
	if got, want := s.report(), "d.call would_be_error=1; d.ip would_deny=1; d.user would_admit=1"; len(got) != len(want) {
		t.Errorf("after a reload: %s", got)
	}
	s.Reset()
	if got := s.report(); got != "" || s.Results()["same"] != 0 {
		t.Errorf("after a reset: %s, %v", got, s.Results())
	}
	s.ask("ip=1")
	s.Tracker.UseRules(nil, nil)
	if got := s.report(); got != "" {
		t.Errorf("without rules: %s", got)
	}
}

// Subjects and examples tell whom the differences concern. They are off if the configuration says so.
func TestSubjectsAndExamples(t *testing.T) {
	t.Parallel()
	for _, cfg := range []candidate.TrackerConfig{{}, {SubjectRules: 1000, Examples: 1}} {
		s := newService(t, cfg, liveRules, candidateRules)
		for range 2 {
			s.ask("ip=1")
			s.ask("ip=2 none=2")
			s.ask("user=1")
			s.ask("call=1")
		}
		got := ""
		for _, result := range candidate.Results {
			for _, subject := range s.Subjects(time.Now(), result, 10) {
				got += fmt.Sprintf("%v %s %s %d; ", result, subject.Rule, subject.Subject, subject.Hits)
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
	var live, next strings.Builder
	for _, b := range []*strings.Builder{&live, &next} {
		b.WriteString("domain: d\ndescriptors:\n")
	}
	const many = candidate.MaxRules + 100
	for i := range many {
		fmt.Fprintf(&live, "  - {key: k%d, rate_limit: {unit: day, requests_per_unit: 5}}\n", i)
		fmt.Fprintf(&next, "  - {key: k%d, rate_limit: {unit: day, requests_per_unit: 0}}\n", i)
	}
	s := newService(t, candidate.TrackerConfig{}, live.String(), next.String())
	for range 2 {
		for i := range many {
			s.ask(fmt.Sprintf("k%d=1", i))
		}
		s.use(next.String())
	}
	list := s.Rules()
	if len(list) != candidate.MaxRules+1 || list[0].Rule != candidate.OtherRules ||
		list[0].Counts[candidate.WouldDeny] != 200 || list[1].Counts[candidate.WouldDeny] != 2 {
		t.Errorf("%d rules, the first %+v", len(list), list[0])
	}
	if list := s.Figures(); len(list) != candidate.MaxRules+1 {
		t.Errorf("%d figures", len(list))
	}
}

// Requests and reloads may come at the same time.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	s := newService(t, candidate.TrackerConfig{SubjectRules: 2, Examples: 2}, liveRules, candidateRules)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 500 {
			s.ask("ip=1 user=1")
			s.ask("user=2")
		}
	}()
	for i := range 50 {
		s.use(candidateRules)
		s.Rules()
		s.Examples(candidate.WouldDeny, 5)
		s.Subjects(time.Now(), candidate.WouldDeny, 5)
		if i%10 == 0 {
			s.Reset()
		}
	}
	<-done
}

// A quota on counters of the live rules that makes a difference counts for the candidate's rule, whatever its index is.
func TestDifferenceByLiveCharge(t *testing.T) {
	t.Parallel()
	const quota = "  - {key: plan, rate_limit: {unit: day, requests_per_unit: 1}, quota_mode: true}\n"
	team := func(n int) string {
		return fmt.Sprintf("  - {key: team, rate_limit: {unit: day, requests_per_unit: %d}, quota_mode: true}\n", n)
	}
	const begin = "domain: d\ndescriptors:\n"
	s := newService(t, candidate.TrackerConfig{}, begin+team(9)+quota, begin+quota+team(1))
	s.ask("plan=1 team=1")
	s.ask("plan=1 team=1") // Only the candidate's quotas are over together; that of plan has the live charge.
	if got, want := s.report(), "d.plan would_deny=1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
