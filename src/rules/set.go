package rules

import (
	"fmt"
	"io"

	"ratelimit/src/backend"
)

// Set is a compiled configuration. It is immutable, so all of a request is decided by the configuration that it loads
// once.
type Set struct {
	domainsByName         map[string]*Domain
	domains               []*Domain
	rules                 []*Rule
	copies                []RuleCopy
	onlyOrderedListDomain []byte
	ruleSlots             int    // set by a Joiner. It may be larger than the number of rules
	domainSlots           int    // set by a Joiner
	units                 []*Set // the Sets that Union joined to this one. They are empty if it was compiled whole
	nameBytes             int    // 0 for joined Sets
}

// RuleCopy is a rule with limits_from and the copy of it that has one of the limits. Both have the same Index.
type RuleCopy struct{ Rule, Copy *Rule }

// SetParts is what a Set is made of. NewSet takes it over.
type SetParts struct {
	Domains   []*Domain // the order of their first files, and different names
	Rules     []*Rule
	Copies    []RuleCopy
	NameBytes int // the length of all names
}

// NewSet returns a Set of the parts.
func NewSet(p SetParts) *Set {
	s := &Set{
		domainsByName: make(map[string]*Domain, len(p.Domains)), domains: p.Domains, rules: p.Rules,
		copies: p.Copies, nameBytes: p.NameBytes,
	}
	for _, d := range s.domains {
		s.domainsByName[d.Name] = d
	}
	if len(s.domains) == 1 {
		s.domains[0].rules = s.rules
	} else {
		for _, r := range s.rules {
			d := s.domainsByName[r.Domain]
			d.rules = append(d.rules, r)
		}
	}
	s.findOnlyOrderedList()
	return s
}

// findOnlyOrderedList sets onlyOrderedListDomain.
func (s *Set) findOnlyOrderedList() {
	lists := 0
	for _, d := range s.domains {
		if d.Form == OrderedList {
			if s.onlyOrderedListDomain = []byte(d.Name); lists > 0 {
				s.onlyOrderedListDomain = nil
			}
			lists++
		}
	}
}

// RuleSlots returns the length of a table that Rule.Index can index. Indexes of a joined Set have gaps.
func (s *Set) RuleSlots() int { return max(s.ruleSlots, len(s.rules)) }

// DomainSlots returns the length of a table that Domain.Index can index.
func (s *Set) DomainSlots() int { return max(s.domainSlots, len(s.domains)) }

// NameBytes returns the length of all names, in bytes. It is 0 for joined Sets.
func (s *Set) NameBytes() int { return s.nameBytes }

// Rules returns all rules, domain by domain in the order of Domains, and within a domain in the order of the files.
// Callers must not change it.
func (s *Set) Rules() []*Rule { return s.rules }

// WriteLines writes one line for each rule of set.
func WriteLines(w io.Writer, set *Set) error {
	for _, r := range set.Rules() {
		if _, err := fmt.Fprintln(w, r); err != nil {
			return err
		}
	}
	return nil
}

// Domains returns all domains in the order of their first files. Callers must not change it.
func (s *Set) Domains() []*Domain { return s.domains }

// Domain returns the domain with the name, or nil.
func (s *Set) Domain(name []byte) *Domain { return s.domainsByName[string(name)] }

// Rule returns a rule of the domain with the full name, or nil. It searches the rules of the domain one by one.
func (s *Set) Rule(domain, fullName string) *Rule {
	if d := s.domainsByName[domain]; d != nil {
		for _, r := range d.rules {
			if r.FullName == fullName {
				return r
			}
		}
	}
	return nil
}

// OnlyOrderedListDomain returns the name of the domain that is an ordered list. It returns nil if no domain is one, or
// several are. Callers must not change it.
func (s *Set) OnlyOrderedListDomain() []byte { return s.onlyOrderedListDomain }

// Form is what the rules of a domain are: each form has a Matcher of its own.
type Form uint8

const (
	DescriptorTree Form = iota // a tree of descriptors, one level for each entry.
	OrderedList                // OrderedList is a list of rules, of which the first match decides.
	LimitTree                  // LimitTree is a tree of limits, whose requests are paths of words.
)

// Domain holds the rules of one domain.
type Domain struct {
	Index  int // the domain's own number in its Set, below Set.DomainSlots
	Name   string
	Origin string // the program whose rule files the domain comes from; empty for this service's own
	// Fallback decides limits that come with requests when the store does not answer.
	Fallback backend.Fallback
	// Counting and OnContention are those of limits that come with requests.
	Counting     backend.Counting
	OnContention backend.Contention

	// HasQuotaBuckets says that the rules also apply to quota buckets. See CheckDivisible.
	HasQuotaBuckets bool

	// HasReplacingRules is set if a rule of the domain replaces others. Only then do callers need a ReplacedNames.
	HasReplacingRules bool

	Pos  Pos // the position of the domain in its first file
	Form Form
	// Matcher searches the rules. Package match has one for each Form.
	Matcher Matcher
	// DescriptorNames are the names of all descriptors in file order, also of those without a limit. Names have the form
	// of Rule.FullName. A descriptor with several limits has a name for each.
	DescriptorNames []string
	// ListRules are the rules of an OrderedList in file order; nil for other forms.
	ListRules []*Match

	rules       []*Rule // the result of Rules
	escapedName string  // Name as escaped keys have it, see KeyFormat
}

// NewDomain returns a domain without rules. The caller sets its Matcher and settings.
func NewDomain(name string, form Form, pos Pos) *Domain {
	return &Domain{Name: name, Form: form, Pos: pos, escapedName: escapedKeyPart(name)}
}

// Matcher searches the rules of a domain. See Domain.FindRule for the results.
type Matcher interface {
	FindRule(entries []Entry, s *SearchScratch) *Match
}

// FindRule returns what a descriptor with these entries matches, or nil. It allocates nothing once s has grown. After
// SearchScratch.Begin the result is valid only if SearchScratch.Err is nil.
//
//   - In a tree of descriptors, that is the descriptor at which the entries end. On each level an exact key and value
//     is preferred to wildcards, which are tried in file order, and those to a key alone. The search never goes back to
//     a level. Behind the entries of a rule with holds one may name a hold, and another one settle or release it, see
//     Match.HoldOf.
//   - In an ordered list it is the first rule that matches and is not a canary. FindRule appends the matching canaries
//     before it to s.Canaries, because they are charged too. If only canaries match, FindRule returns the last one.
//   - In a tree of limits it is the deepest node that the words of the entries lead to, charged with the nodes above
//     it.
func (d *Domain) FindRule(entries []Entry, s *SearchScratch) *Match {
	if !s.Bounds.Allows(workOfDescriptor) {
		return nil
	}
	return d.Matcher.FindRule(entries, s)
}

// Rules returns the rules of the domain in the order of the files. Callers must not change it.
func (d *Domain) Rules() []*Rule { return d.rules }

// ReplacedNames is the set of names that the rules of one request replace. Its zero value is empty.
type ReplacedNames struct{ names map[string]bool }

// Reset removes all names.
func (p *ReplacedNames) Reset() { clear(p.names) }

// AddReplacedBy adds the names in r.Replaces.
func (p *ReplacedNames) AddReplacedBy(r *Rule) {
	if p.names == nil {
		p.names = make(map[string]bool)
	}
	for _, name := range r.Replaces {
		p.names[name] = true
	}
}

// IsReplaced reports whether r is replaced, so that it does not apply. Unlimited rules are never replaced.
func (p *ReplacedNames) IsReplaced(r *Rule) bool { return !r.Unlimited && p.names[r.Name] }
