package metrics

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
)

// The counters that each rule has.
const (
	totalHits = iota
	withinLimit
	nearLimit
	overLimit
	overCached
	shadowMode
	hitCounters
)

var hitNames = [hitCounters]string{
	totalHits:   "total_hits",
	withinLimit: "within_limit",
	nearLimit:   "near_limit",
	overLimit:   "over_limit",
	overCached:  "over_limit_with_local_cache",
	shadowMode:  "shadow_mode",
}

const rulePrefix = "ratelimit.service.rate_limit."

// hits are the counters of one name.
type hits struct {
	prefix string // of the names of all of them
	counts [hitCounters]Counter
	// notFound: of an unknown domain; only the first is used.
	notFound bool
}

func newHits(key string) *hits { return &hits{prefix: rulePrefix + sanitize(key) + "."} }

// newChosenHits is newHits for a key with parts that a caller chose.
func newChosenHits(key string) *hits {
	return &hits{prefix: rulePrefix + escapeTags(sanitize(key)) + "."}
}

func newNotFound(domain string) *hits {
	return &hits{prefix: rulePrefix + escapeTags(sanitize(domain)) + ".domain_not_found", notFound: true}
}

func (h *hits) stats(add func(Stat)) {
	if h.notFound {
		add(Stat{h.prefix, KindCounter, int64(h.counts[0].Value())})
		return
	}
	for i := range h.counts {
		add(Stat{h.prefix + hitNames[i], KindCounter, int64(h.counts[i].Value())})
	}
}

// take adds what other counted.
func (h *hits) take(other *hits) {
	for i := range h.counts {
		h.counts[i].Add(other.counts[i].Value())
	}
}

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// sanitize makes a rule's key fit for statsd: `:` and `|` would end a name
// there, and the dots of an address look like levels. Control characters, which
// could begin a line of their own, go too.
func sanitize(key string) string {
	key = strings.Map(func(c rune) rune {
		if c == ':' || c == '|' || c < ' ' || c == 0x7F || c == utf8.RuneError {
			return '_'
		}
		return c
	}, key)
	return ipv4.ReplaceAllStringFunc(key, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}

var tag = regexp.MustCompile(`(^|\.)__+([^.]*=)`)

// escapeTags keeps a caller from adding tags to a name: receivers of statsd take
// `.__key=value` for one, wherever it stands. `a.__key=value` becomes `a._key=value`.
func escapeTags(key string) string { return tag.ReplaceAllString(key, "${1}_$2") }

// Outcome is what became of one descriptor.
type Outcome uint8

// The outcomes of a descriptor that met a rule, and Unmatched for the others.
const (
	Within Outcome = iota
	Near
	Over
	Shadow // over, and passed all the same
	Unlimited
	Refunded
	Unmatched
	outcomeCount
)

var outcomeNames = [outcomeCount]string{"within", "near", "over", "shadow", "unlimited", "refunded", "unmatched"}

// String is the name in lower case.
func (o Outcome) String() string { return outcomeNames[o] }

type outcomes [outcomeCount]Counter

// unanswered counts charges that the store did not answer, by what was done
// instead.
type unanswered [4]Counter // by algorithm.OnFailure

// Unanswered is how often charges of one rule had no answer of the store, and what
// was done instead. Domain and Rule are as in Decisions.
type Unanswered struct {
	Domain, Rule string
	Instead      string // as rule files call it
	Count        uint64
}

// Decisions is how often descriptors of one rule had one outcome.
type Decisions struct {
	Domain  string // empty: unknown domains, together
	Rule    string // the key without the domain; empty: none, "(request)": a limit that came with the request
	Outcome Outcome
	Count   uint64
}

// ruleStats is what is counted of one rule.
type ruleStats struct {
	rule     *rules.Rule
	hits     *hits // nil: counted by request value, or not at all (unlimited)
	outcomes outcomes

	unanswered unanswered
}

// domainStats is what is counted of one domain.
type domainStats struct {
	name      string
	unmatched Counter
}

// ruleTable has what is counted of each rule and domain of a Set, by their
// Index. It keeps the table before it for requests that began before the swap.
type ruleTable struct {
	set     *rules.Set
	rules   []*ruleStats
	domains []*domainStats
	before  *ruleTable // whose own before is nil
}

// Use makes the counters of set's rules ready. Rules and domains that the set
// before had under the same name go on counting where they were.
func (r *Registry) Use(set *rules.Set) {
	old := r.rules.Load()
	t := &ruleTable{set: set}
	known := make(map[string][]*ruleStats) // two rules may have one key: a_b over c, and a over b_c
	domains := make(map[string]*domainStats)
	if old != nil {
		t.before = &ruleTable{set: old.set, rules: old.rules, domains: old.domains}
		defer r.retire(old.before, t)
		for _, s := range old.rules {
			known[s.rule.Key] = append(known[s.rule.Key], s)
		}
		for _, s := range old.domains {
			domains[s.name] = s
		}
	}
	for _, rule := range set.Rules() {
		var before *ruleStats
		if same := known[rule.Key]; len(same) > 0 {
			before, known[rule.Key] = same[0], same[1:]
		}
		t.rules = append(t.rules, newRuleStats(rule, before))
	}
	for _, d := range set.Domains() {
		s := domains[d.Name]
		if s == nil {
			s = &domainStats{name: d.Name}
		}
		t.domains = append(t.domains, s)
	}
	r.rules.Store(t)
}

// retire keeps what the rules of old counted that are neither in t nor before
// it.
func (r *Registry) retire(old, t *ruleTable) {
	if old == nil {
		return
	}
	kept := make(map[*ruleStats]bool)
	t.each(func(s *ruleStats) { kept[s] = true })
	for _, s := range old.rules {
		if s.hits != nil && !kept[s] {
			r.retired.add(s.hits, false)
		}
	}
}

// newRuleStats goes on with old, if it fits.
func newRuleStats(rule *rules.Rule, old *ruleStats) *ruleStats {
	counted := !rule.Unlimited && !rule.PerValue()
	if old != nil && counted == (old.hits != nil) {
		return old
	}
	s := &ruleStats{rule: rule}
	if counted {
		s.hits = newHits(rule.Key)
	}
	return s
}

// find returns the table of set; nil if it is neither the one in force nor the
// one before.
func (t *ruleTable) find(set *rules.Set) *ruleTable {
	switch {
	case t == nil, t.set == set:
		return t
	case t.before != nil && t.before.set == set:
		return t.before
	}
	return nil
}

// each calls do for all rules, those that only the table before has last.
func (t *ruleTable) each(do func(*ruleStats)) {
	if t == nil {
		return
	}
	seen := make(map[*ruleStats]bool, len(t.rules))
	for _, s := range t.rules {
		seen[s] = true
		do(s)
	}
	if t.before == nil {
		return
	}
	for _, s := range t.before.rules {
		if !seen[s] {
			do(s)
		}
	}
}

// Decisions are all counts of decisions that are not zero, in no order. Counts
// of one rule and outcome may come apart; they add up.
func (r *Registry) Decisions() []Decisions {
	var list []Decisions
	add := func(domain, rule string, o Outcome, n uint64) {
		if n > 0 {
			list = append(list, Decisions{domain, rule, o, n})
		}
	}
	t := r.rules.Load()
	t.each(func(s *ruleStats) {
		rule := strings.TrimPrefix(s.rule.Key, s.rule.Domain+".")
		for o := range s.outcomes {
			add(s.rule.Domain, rule, Outcome(o), s.outcomes[o].Value())
		}
	})
	if t != nil {
		for _, d := range t.domains {
			add(d.name, "", Unmatched, d.unmatched.Value())
		}
	}
	for o := range r.onRequest {
		add("", "(request)", Outcome(o), r.onRequest[o].Value())
	}
	add("", "", Unmatched, r.unknown.Value())
	return list
}

// Unanswered are all counts of charges without an answer that are not zero, in no
// order. Counts of one rule may come apart; they add up.
func (r *Registry) Unanswered() (list []Unanswered) {
	add := func(domain, rule string, counts *unanswered) {
		for f := range counts {
			if n := counts[f].Value(); n > 0 {
				list = append(list, Unanswered{domain, rule, algorithm.OnFailure(f).String(), n})
			}
		}
	}
	r.rules.Load().each(func(s *ruleStats) {
		add(s.rule.Domain, strings.TrimPrefix(s.rule.Key, s.rule.Domain+"."), &s.unanswered)
	})
	add("", "(request)", &r.onRequestUnanswered)
	return list
}
