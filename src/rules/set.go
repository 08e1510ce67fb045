package rules

import "ratelimit/src/backend"

// Entry is one key and value of a request's descriptor. The caller owns the bytes.
type Entry struct {
	Key, Value []byte
}

// Set is a compiled configuration. It is immutable, so all of a request is decided by the configuration that it loads once.
type Set struct {
	domainsByName         map[string]*Domain
	domains               []*Domain
	rules                 []*Rule
	copies                []ruleCopy // copies are the copies of rules with limits_from. They have the Index of their rule.
	onlyOrderedListDomain []byte
	ruleSlots             int    // ruleSlots is set by a Joiner. It may be larger than the number of rules.
	domainSlots           int    // domainSlots is set by a Joiner.
	units                 []*Set // units are the Sets that Union joined to this one. They are empty if it was compiled whole.
	nameBytes             int    // nameBytes is the length of all names, as Shared counts it. It is 0 for joined Sets.
}

// ruleCopy is a rule with limits_from and the copy of it that has one of the limits.
type ruleCopy struct{ rule, copy *Rule }

// RuleSlots returns the length of a table that Rule.Index can index. Indexes of a joined Set have gaps.
func (s *Set) RuleSlots() int { return max(s.ruleSlots, len(s.rules)) }

// DomainSlots returns the length of a table that Domain.Index can index.
func (s *Set) DomainSlots() int { return max(s.domainSlots, len(s.domains)) }

// Rules returns all rules, domain by domain in the order of Domains, and within a domain in the order of the files. Callers must not change
// it.
func (s *Set) Rules() []*Rule { return s.rules }

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

// OnlyOrderedListDomain returns the name of the domain that is an ordered list. It returns nil if no domain is one, or several are.
// Callers must not change it.
func (s *Set) OnlyOrderedListDomain() []byte { return s.onlyOrderedListDomain }

// divideRules gives each domain its rules.
func (s *Set) divideRules() {
	if len(s.domains) == 1 {
		s.domains[0].rules = s.rules
		return
	}
	for _, r := range s.rules {
		d := s.domainsByName[r.Domain]
		d.rules = append(d.rules, r)
	}
}

// Domain holds the rules of one domain.
type Domain struct {
	Index         int // Index is the domain's own number in its Set, below Set.DomainSlots.
	Name          string
	FromDivvyFile bool // FromDivvyFile says that the domain comes from a rule file of divvy.
	// Fallback decides limits that come with requests when the store does not answer.
	Fallback backend.Fallback

	// HasQuotaBuckets says that the rules also apply to quota buckets. See CheckDivisible.
	HasQuotaBuckets bool

	// HasReplacingRules is set if a rule of the domain replaces others. Only then do callers need a ReplacedNames.
	HasReplacingRules bool

	pos             Pos
	rules           []*Rule // rules are the result of Rules.
	matcher         matcher
	escapedName     string   // escapedName is Name as escaped keys have it, see KeyFormat.
	descriptorNames []string // descriptorNames are the result of DescriptorNames.
}

// matcher searches the rules of a domain: a *descriptorTree, an *orderedList or a *limitTree.
type matcher interface {
	findRule(entries []Entry, s *SearchScratch, canaries []*Rule) (*Rule, []*Rule)
	explain(entries []Entry, s *SearchScratch) *SearchRecord
}

// SearchScratch is memory that FindRule and Rule.IsEnforced keep for their next call. Its zero value is ready to use.
type SearchScratch struct {
	joinedEntry   []byte   // joinedEntry is an entry in the form "key_value".
	valuesBySlot  [][]byte // valuesBySlot are the result of orderedList.valuesBySlot.
	bytesOfValues int      // bytesOfValues is the length of valuesBySlot together.
	counterName   []byte   // counterName is the name of a counter that Rule.IsEnforced hashes.
	bounds        searchBounds
}

// Reset forgets the last request. It frees each buffer that is larger than maxBytes.
func (s *SearchScratch) Reset(maxBytes int) {
	const sliceBytes = 24 // A []byte without its content takes 24 bytes.
	clear(s.valuesBySlot[:cap(s.valuesBySlot)])
	s.bounds.reset()
	if cap(s.joinedEntry) > maxBytes {
		s.joinedEntry = nil
	}
	if cap(s.counterName) > maxBytes {
		s.counterName = nil
	}
	if cap(s.valuesBySlot) > maxBytes/sliceBytes {
		s.valuesBySlot = nil
	}
}

// FindRule returns the rule that applies to a descriptor with these entries, or nil. It allocates nothing once s has grown.
// After SearchScratch.Begin the result is valid only if SearchScratch.Err is nil.
//
//   - In a tree of descriptors, that is the rule at which the entries end. On each level an exact key and value is preferred to
//     wildcards, which are tried in file order, and those to a key alone. The search never goes back to a level. Behind the entries of
//     a rule with holds one may name a hold, and another one settle or release it, see Rule.HoldOf.
//   - In an ordered list it is the first rule that matches and is not a canary. FindRule appends the matching canaries before it to
//     canaries, because they are charged too. If only canaries match, FindRule returns the last one.
//   - In a tree of limits it is the deepest node that the words of the entries lead to, charged with the nodes above it.
func (d *Domain) FindRule(entries []Entry, s *SearchScratch, canaries []*Rule) (*Rule, []*Rule) {
	if !s.bounds.allows(workOfDescriptor) {
		return nil, canaries
	}
	return d.matcher.findRule(entries, s, canaries)
}

// Explain searches like FindRule and returns a record of the search for people. It is slower than FindRule and allocates.
func (d *Domain) Explain(entries []Entry) *SearchRecord {
	return d.matcher.explain(entries, new(SearchScratch))
}

// ExplainWithin is Explain within the bounds of s.Begin. The record is not valid if s.Err then returns an error. A search for people
// takes more work than FindRule, because it compares descriptors behind the one that matches, too.
func (d *Domain) ExplainWithin(entries []Entry, s *SearchScratch) *SearchRecord {
	return d.matcher.explain(entries, s)
}

// Rules returns the rules of the domain in the order of the files. Callers must not change it.
func (d *Domain) Rules() []*Rule { return d.rules }

// DescriptorNames returns the names of all descriptors in file order, also of those without a limit. Names have the form of
// Rule.FullName. A descriptor with several limits has a name for each. Callers must not change it.
func (d *Domain) DescriptorNames() []string { return d.descriptorNames }

// IsLimitTree reports whether the domain is a tree of limits, whose requests are paths of words.
func (d *Domain) IsLimitTree() bool {
	_, is := d.matcher.(*limitTree)
	return is
}

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
