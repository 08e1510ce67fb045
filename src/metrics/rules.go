package metrics

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"
	"weak"

	"ratelimit/src/backend"
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
type hits [hitCounters]Counter

// any reports whether any hit was counted.
func (h *hits) any() bool { return h[totalHits].Value() > 0 }

// take adds what other counted.
func (h *hits) take(other *hits) {
	for i := range h {
		h[i].Add(other[i].Value())
	}
}

// namedHits are counters with their name.
type namedHits struct {
	*hits
	prefix string // of the names of all of them
	// notFound: of an unknown domain; only the first is used.
	notFound bool
}

func hitsOf(key string, h *hits) namedHits {
	return namedHits{hits: h, prefix: rulePrefix + sanitize(key) + "."}
}

// newChosenHits are new counters for a key with parts that a caller chose.
func newChosenHits(key string) namedHits {
	return namedHits{hits: new(hits), prefix: rulePrefix + escapeTags(sanitize(key)) + "."}
}

func newNotFound(domain string) namedHits {
	return namedHits{hits: new(hits), prefix: rulePrefix + escapeTags(sanitize(domain)) + ".domain_not_found", notFound: true}
}

func (h namedHits) stats(add func(Stat)) {
	if h.notFound {
		add(Stat{h.prefix, KindCounter, int64(h.hits[0].Value())})
		return
	}
	for i := range h.hits {
		add(Stat{h.prefix + hitNames[i], KindCounter, int64(h.hits[i].Value())})
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
	if strings.Count(key, ".") < 3 {
		return key
	}
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
	Uncharged // would have passed, and was not charged, since another limit refused
	outcomeCount
)

var outcomeNames = [outcomeCount]string{"within", "near", "over", "shadow", "unlimited", "refunded", "unmatched", "uncharged"}

// String is the name in lower case.
func (o Outcome) String() string { return outcomeNames[o] }

type outcomes [outcomeCount]Counter

// unanswered counts charges that the store did not answer, by what was done
// instead.
type unanswered [4]Counter // by algorithm.Fallback

// Unanswered is how often charges of one rule had no answer of the store, and what
// was done instead. Domain and Rule are as in Decisions.
type Unanswered struct {
	Domain, Rule string
	Fallback     string // as rule files call it
	Count        uint64
}

// Decisions is how often descriptors of one rule had one outcome.
type Decisions struct {
	Domain  string // empty: unknown domains, together
	Rule    string // the key without the domain; empty: none, "(request)": a limit that came with the request
	Outcome Outcome
	Count   uint64
}

// ruleStats is what is counted of one rule. It does not know the rule, which may come with a
// Set that is no more.
type ruleStats struct {
	hits       hits // only used where hasHits
	outcomes   outcomes
	unanswered atomic.Pointer[unanswered] // nil: nothing yet
}

// hasHits reports whether hits on r are counted under the rule's own name: those on some rules
// are counted by request value, those on unlimited ones not at all.
func hasHits(r *rules.Rule) bool { return !r.Unlimited && !r.PerValue() }

// failed counts a charge without an answer.
func (s *ruleStats) failed(instead backend.Fallback) {
	u := s.unanswered.Load()
	if u == nil {
		s.unanswered.CompareAndSwap(nil, new(unanswered))
		u = s.unanswered.Load()
	}
	u[instead].Add(1)
}

// domainStats is what is counted of one domain.
type domainStats struct {
	name      string
	unmatched Counter
}

// ruleTable has what is counted of each rule and domain of a Set, by their
// Index, and what was counted of those that reloads removed.
type ruleTable struct {
	set     *rules.Set
	rules   []*ruleStats
	domains []*domainStats
	before  *oldTable // nil: none

	// Guarded by Registry.reading.
	removed        map[string]*removedRule   // by key
	removedDomains map[string]*removedDomain // by name
}

// oldTable counts for requests that began before the swap. It does not keep their Set.
type oldTable struct {
	set     weak.Pointer[rules.Set]
	rules   []*ruleStats
	domains []*domainStats
}

// removedRule is a rule that a reload removed. It is shown for keepRemoved, and goes
// on counting where it was if it comes back meanwhile.
type removedRule struct {
	*ruleStats
	domain  string
	hasHits bool
	since   time.Time
}

// removedDomain is a domain that a reload removed.
type removedDomain struct {
	*domainStats
	since time.Time
}

// keepRemoved is how long removed rules are shown, unless there are too many.
const keepRemoved = time.Hour

// Use makes the counters of set's rules ready. Rules and domains that the set
// before had under the same name, or a set in the last hour, go on counting where
// they were.
func (r *Registry) Use(set *rules.Set) {
	r.reading.Lock()
	defer r.reading.Unlock()
	now := r.now()
	t := &ruleTable{set: set, removed: make(map[string]*removedRule), removedDomains: make(map[string]*removedDomain)}
	old := r.rules.Load()
	if old == nil {
		old = &ruleTable{set: new(rules.Set)}
	} else {
		t.before = &oldTable{set: weak.Make(old.set), rules: old.rules, domains: old.domains}
	}
	maps.Copy(t.removed, old.removed)
	for _, g := range t.inherit(old, now) {
		r.retire(g.key, t.removed[g.key]) // another rule of the same key
		t.removed[g.key] = g.removedRule
	}
	t.inheritDomains(old, now)
	r.makeRoom(t, now)
	r.rules.Store(t)
}

// keyedRule is a removed rule with its key.
type keyedRule struct {
	key string
	*removedRule
}

// inherit takes over the counters of old and of t.removed for rules of the same key,
// and makes new ones for the others. It returns the rules of old that set does not
// have.
func (t *ruleTable) inherit(old *ruleTable, now time.Time) (gone []keyedRule) {
	// Two rules may have one key: a_b over c, and a over b_c.
	first := make(map[string]int32, len(old.rules)) // by key, the first of old that is left; -1: none
	next := make([]int32, len(old.rules))           // the one after it with the same key
	was := old.set.Rules()
	for i := len(was) - 1; i >= 0; i-- {
		next[i] = -1
		if n, known := first[was[i].Key]; known {
			next[i] = n
		}
		first[was[i].Key] = int32(i)
	}
	const taken = -2
	t.rules = make([]*ruleStats, 0, len(t.set.Rules()))
	for _, rule := range t.set.Rules() {
		if i, known := first[rule.Key]; known && i >= 0 && hasHits(rule) == hasHits(was[i]) {
			t.rules = append(t.rules, old.rules[i])
			first[rule.Key], next[i] = next[i], taken
			continue
		}
		stats := new(ruleStats)
		if back := t.removed[rule.Key]; back != nil && back.hasHits == hasHits(rule) {
			stats = back.ruleStats
			delete(t.removed, rule.Key)
		}
		t.rules = append(t.rules, stats)
	}
	for i, rule := range was {
		if next[i] != taken {
			// Clones, so that the old Set's text can go.
			gone = append(gone, keyedRule{strings.Clone(rule.Key), &removedRule{old.rules[i], strings.Clone(rule.Domain), hasHits(rule), now}})
		}
	}
	return gone
}

func (t *ruleTable) inheritDomains(old *ruleTable, now time.Time) {
	known := make(map[string]*removedDomain, len(old.domains)+len(old.removedDomains))
	for name, d := range old.removedDomains {
		if now.Sub(d.since) < keepRemoved {
			known[name] = d
		}
	}
	for _, s := range old.domains {
		known[s.name] = &removedDomain{s, now}
	}
	for _, d := range t.set.Domains() {
		s := &domainStats{name: d.Name}
		if was := known[d.Name]; was != nil {
			s = was.domainStats
			delete(known, d.Name)
		}
		t.domains = append(t.domains, s)
	}
	t.removedDomains = known
}

// makeRoom retires removed rules: those whose time is up, and the oldest if there are
// too many. Those that have just been removed stay.
func (r *Registry) makeRoom(t *ruleTable, now time.Time) {
	r.expire(t, now)
	tooMany := len(t.removed) - r.retired.most
	if tooMany <= 0 {
		return
	}
	var old []keyedRule
	for key, g := range t.removed {
		if g.since.Before(now) {
			old = append(old, keyedRule{key, g})
		}
	}
	slices.SortFunc(old, func(a, b keyedRule) int { return a.since.Compare(b.since) })
	for _, g := range old[:min(tooMany, len(old))] {
		r.retire(g.key, g.removedRule)
		delete(t.removed, g.key)
	}
}

// expire retires removed rules whose time is up.
func (r *Registry) expire(t *ruleTable, now time.Time) {
	for key, g := range t.removed {
		if now.Sub(g.since) >= keepRemoved {
			r.retire(key, g)
			delete(t.removed, key)
		}
	}
}

// retire gives what a removed rule counted to the retired counters.
func (r *Registry) retire(key string, g *removedRule) {
	if g != nil && g.hasHits {
		r.retired.add(hitsOf(key, &g.hits), false)
	}
}

// find returns the counters of the rules and domains of set; nil if it is neither the one in
// force nor the one before.
func (t *ruleTable) find(set *rules.Set) ([]*ruleStats, []*domainStats) {
	switch {
	case t == nil:
	case t.set == set:
		return t.rules, t.domains
	case t.before != nil && t.before.set.Value() == set:
		return t.before.rules, t.before.domains
	}
	return nil, nil
}

// each calls do for all rules, those that were removed last.
func (t *ruleTable) each(do func(key, domain string, hasHits bool, s *ruleStats)) {
	if t == nil {
		return
	}
	for i, rule := range t.set.Rules() {
		do(rule.Key, rule.Domain, hasHits(rule), t.rules[i])
	}
	for key, g := range t.removed {
		do(key, g.domain, g.hasHits, g.ruleStats)
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
	r.reading.Lock()
	defer r.reading.Unlock()
	t := r.rules.Load()
	t.each(func(key, domain string, _ bool, s *ruleStats) {
		for o := range s.outcomes {
			add(domain, ruleName(key, domain), Outcome(o), s.outcomes[o].Value())
		}
	})
	if t != nil {
		for _, d := range t.domains {
			add(d.name, "", Unmatched, d.unmatched.Value())
		}
		for name, d := range t.removedDomains {
			add(name, "", Unmatched, d.unmatched.Value())
		}
	}
	for o := range r.onRequest.outcomes {
		add("", "(request)", Outcome(o), r.onRequest.outcomes[o].Value())
	}
	add("", "", Unmatched, r.unknown.Value())
	return list
}

// ruleName is the key of a rule without its domain.
func ruleName(key, domain string) string { return key[len(domain)+len("."):] }

// Unanswered are all counts of charges without an answer that are not zero, in no
// order. Counts of one rule may come apart; they add up.
func (r *Registry) Unanswered() (list []Unanswered) {
	add := func(domain, rule string, counts *unanswered) {
		for f := range counts {
			if n := counts[f].Value(); n > 0 {
				list = append(list, Unanswered{domain, rule, backend.Fallback(f).String(), n})
			}
		}
	}
	r.reading.Lock()
	defer r.reading.Unlock()
	r.rules.Load().each(func(key, domain string, _ bool, s *ruleStats) {
		if u := s.unanswered.Load(); u != nil {
			add(domain, ruleName(key, domain), u)
		}
	})
	if u := r.onRequest.unanswered.Load(); u != nil {
		add("", "(request)", u)
	}
	return list
}
