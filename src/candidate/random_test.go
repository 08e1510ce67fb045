package candidate_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/candidate"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

// randomRules writes random rules. Rules with equal draws have equal texts, so two versions that share most draws are
// alike.
type randomRules struct {
	*rand.Rand
	text strings.Builder
}

func (r *randomRules) pick(texts ...string) string { return texts[r.IntN(len(texts))] }

func (r *randomRules) limit(name string) string {
	n := 1 + r.IntN(3)
	text := r.pick(
		fmt.Sprintf("unit: minute, requests_per_unit: %d", n),
		fmt.Sprintf("unit: minute, requests_per_unit: %d, enforce_percent: 50", n),
		fmt.Sprintf("unit: hour, requests_per_unit: %d", n),
		fmt.Sprintf("unit: minute, requests_per_unit: %d, algorithm: gcra", n),
		fmt.Sprintf("unit: minute, requests_per_unit: %d, algorithm: sliding_window", n), "unlimited: true",
		fmt.Sprintf("unit: minute, requests_per_unit: %d, hold: 20s, hold_id: id", n),
		fmt.Sprintf("algorithm: concurrency, requests_per_unit: %d, hold: 20s, hold_id: id", n),
	)
	if name != "" {
		text += ", name: " + name
	}
	return "{" + text + "}"
}

func (r *randomRules) limits() string {
	if r.IntN(4) > 0 {
		return "rate_limit: " + r.limit(r.pick("", "", "a"))
	}
	return fmt.Sprintf("rate_limits: [{unit: minute, requests_per_unit: %d}, {unit: hour, requests_per_unit: %d}]%s",
		1+r.IntN(3), 2+r.IntN(3), r.pick("", ", on_reject: none"))
}

func (r *randomRules) modes() string {
	return r.pick("", "", "", "", ", shadow_mode: true", ", quota_mode: true")
}

// tree writes a tree of descriptors. versions has a number for each rule; a rule with another number is drawn anew.
func (r *randomRules) tree(versions []uint64) {
	r.text.WriteString("descriptors:\n")
	for i, version := range versions {
		r.Rand = rand.New(rand.NewPCG(uint64(i), version))
		if r.IntN(6) == 0 {
			continue
		}
		key := []string{"user", "ip", "user", "ip"}[i%4]
		value := []string{"", "", "1", r.pick("1*", "2*")}[i%4]
		fmt.Fprintf(&r.text, "  - {key: %s", key)
		if value != "" {
			fmt.Fprintf(&r.text, ", value: \"%s\"", value)
		}
		if strings.HasSuffix(value, "*") && r.IntN(2) == 0 {
			r.text.WriteString(", share_threshold: true")
		}
		r.text.WriteString(", " + r.limits() + r.modes() + r.pick("", "", ", charge: path"))
		if r.IntN(2) == 0 {
			fmt.Fprintf(&r.text, ", descriptors: [{key: path, %s%s}]", r.limits(), r.modes())
		}
		r.text.WriteString("}\n")
	}
	if r.IntN(4) == 0 {
		r.text.WriteString("  - {key: plan, rate_limit: {unit: minute, requests_per_unit: 5, replaces: [{name: a}]}}\n  - " +
			"{key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: a}}\n")
	}
}

func (r *randomRules) list(versions []uint64) {
	r.text.WriteString("rules:\n")
	for i, version := range versions {
		r.Rand = rand.New(rand.NewPCG(uint64(i), version))
		match := r.pick("user: \"1\"", "ip: \"*\"", "user: \"*\", path: \"*\"", "user: \"1*\"", "path: \"2*\"", "plan: \"*\"")
		fmt.Fprintf(&r.text, "  - {match: {%s}, per: [%s], %s%s}\n", match, r.pick("user", "ip", "user, path", ""),
			r.limits(), r.modes())
	}
}

func (r *randomRules) words(versions []uint64) {
	r.text.WriteString("schema:\n")
	for i, word := range []string{"user", "ip"} {
		r.Rand = rand.New(rand.NewPCG(uint64(i), versions[i]))
		fmt.Fprintf(&r.text, "  %s: {limits: [%d, %d, 60], children: {'*': {limits: [%d, 3, 60]}, '1': {children: {path: "+
			"{limits: [1, 1, 30]}}}}}\n",
			word, 3+r.IntN(2), 5, 1+r.IntN(2))
	}
}

// randomSet returns random rules, nil if they are not valid.
func randomSet(form int, versions []uint64) *rules.Set {
	r := &randomRules{}
	r.text.WriteString("domain: d\n")
	[]func([]uint64){r.tree, r.tree, r.list, r.words}[form](versions)
	set, _, err := filerules.Load([]filerules.File{{Name: "test.yaml", Data: []byte(r.text.String())}}, compile.Options{})
	if err != nil {
		return nil
	}
	return set
}

func requestForCandidate(random *rand.Rand) *limiter.Request {
	var b strings.Builder
	for range 1 + random.IntN(3) {
		pick := func(texts ...string) string { return texts[random.IntN(len(texts))] }
		b.WriteString(pick("user", "ip", "user", "ip", "plan", "a") + "=" + pick("1", "2", "11", "22"))
		b.WriteString(pick("", "", ",path=1", ",path=2", ",id=1", ",id=2", ",id=1,hold=release", ",id=1,hold=settle",
			",path=1,id=1"))
		b.WriteString(pick("", "", "", ":2", ":0", "-") + " ")
	}
	req := parse(b.String())
	if random.IntN(10) == 0 {
		d := &req.Descriptors[0]
		d.HasLimit, d.Limit = true, rules.Rate{Requests: 2, Unit: rules.UnitDay, UnitMultiplier: 1}
	}
	return req
}

// answerText has all of an answer that callers and metrics can see.
func answerText(a *limiter.Answer, err error) string {
	return fmt.Sprintf("%t %v %v %t %v\n%+v", a.Over, a.RetryAfter, a.Fallback, a.Shadowed, err, chargeTexts(a))
}

func chargeTexts(a *limiter.Answer) (list []string) {
	for i := range a.Statuses {
		st := &a.Statuses[i]
		list = append(list, fmt.Sprintf("%t %v %d %v %v %v", st.Over, st.InQuotaMode, st.Amount, st.Op, st.RetryAfter,
			st.ResetAfter))
		for j := range st.Charges {
			c := &st.Charges[j]
			list = append(list, fmt.Sprintf("%s %s %v %t %t %+v", c.RuleName(), c.CounterKey, c.Op, c.Over, c.IsCanary,
				c.Verdict))
		}
	}
	return list
}

// counted is a Judge over memory whose decisions are counted.
type counted struct {
	*candidate.Judge
	counters *metrics.Registry
	answer   limiter.Answer
	err      error
}

func newCounted(tb testing.TB, cfg candidate.Config, set *rules.Set) *counted {
	tb.Helper()
	store := limitertest.Store(tb, memory.Config{})
	c := &counted{counters: metrics.New(metrics.Config{})}
	cfg.Limiter.Backend, cfg.Limiter.Recorders = store, []limiter.Recorder{c.counters}
	c.Judge = candidate.New(cfg)
	c.counters.UseRules(set)
	c.UseRules(set)
	return c
}

func (c *counted) check(tb testing.TB, req *limiter.Request) {
	c.err = c.Check(tb.Context(), req, &c.answer)
}

// wantJudgement returns the difference between the answers of two services to a request.
func wantJudgement(live, next *counted) (want [candidate.NumResults]int) {
	switch {
	case live.err != nil:
	case next.err != nil:
		want[candidate.WouldBeError] = 1
	case live.answer.Over == next.answer.Over:
		want[candidate.SameAnswer] = 1
	case next.answer.Over:
		want[candidate.WouldDeny] = 1
	default:
		want[candidate.WouldAdmit] = 1
	}
	return want
}

// agrees reports whether got is want, except for judgements that the sample leaves out.
func agrees(got, want [candidate.NumResults]int) bool {
	notSampled := got[candidate.NotSampled]
	for r := range got {
		if r != int(candidate.NotSampled) {
			if got[r] > want[r] {
				return false
			}
			notSampled -= want[r] - got[r]
		}
	}
	return notSampled == 0
}

// Whatever the rules and requests, a candidate changes no answer and no figure of the live rules, and the differences
// are those of two services with the live rules and the candidate rules.
func TestCandidateChangesNothing(t *testing.T) {
	t.Parallel()
	var differences [candidate.NumResults]int
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 1))
		form := random.IntN(4)
		versions := make([]uint64, 4)
		for i := range versions {
			versions[i] = random.Uint64()
		}
		live := randomSet(form, versions)
		versions[random.IntN(4)] = random.Uint64()
		next := randomSet(form, versions)
		if live == nil || next == nil {
			continue
		}
		cfg := candidate.Config{Limiter: limiter.Config{
			EscapeKeys: random.IntN(2) == 0, ChargeAllOrNothing: random.IntN(4) == 0, ShadowMode: random.IntN(20) == 0,
			QuotaMode: random.IntN(20) == 0,
		}, SkipsFullCounters: random.IntN(4) == 0}
		got := new(judgements)
		withCandidate := cfg
		withCandidate.Recorder = got
		plain, judged, oracle := newCounted(t, cfg, live), newCounted(t, withCandidate, live), newCounted(t, cfg, next)
		judged.UseCandidate(candidate.Rules{Set: next})
		if random.IntN(3) == 0 && !cfg.Limiter.ChargeAllOrNothing {
			judged.SetSampleStep(4)
		}
		now := epoch
		for range 60 {
			req := requestForCandidate(random)
			now = now.Add(time.Duration(random.IntN(4)) * 5 * time.Second)
			req.Now = now
			for _, c := range []*counted{plain, judged, oracle} {
				c.check(t, req)
			}
			if want, is := answerText(&plain.answer, plain.err), answerText(&judged.answer, judged.err); is != want {
				t.Fatalf("seed %d: with a candidate the answer differs:\n got %s\nwant %s", seed, is, want)
			}
			var counts [candidate.NumResults]int
			for _, j := range got.list {
				counts[j.Result]++
				differences[j.Result]++
			}
			texts := got.take()
			if want := wantJudgement(plain, oracle); !agrees(counts, want) {
				t.Fatalf("seed %d, form %d: judged %v (%s), want %v; live %s\ncandidate %s", seed, form, counts, texts, want,
					answerText(&plain.answer, plain.err), answerText(&oracle.answer, oracle.err))
			}
			if (plain.err != nil) != (oracle.err != nil) {
				break // From now on the counters differ: only one of the two services has charged the request.
			}
		}
		if want, is := plain.counters.Stats(), judged.counters.Stats(); !reflect.DeepEqual(is, want) {
			t.Fatalf("seed %d: with a candidate the figures are\n%v\nwant\n%v", seed, is, want)
		}
	}
	for result, n := range differences {
		if r := candidate.Result(result); n < 20 && r != candidate.NotJudged {
			t.Errorf("only %d judgements are %v", n, r)
		}
	}
}
