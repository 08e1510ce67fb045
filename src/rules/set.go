package rules

import "ratelimit/src/backend"

// Entry is one key and value of a request's descriptor. The bytes belong to the caller.
type Entry struct {
	Key, Value []byte
}

// Set is a compiled configuration. It is immutable, so a request that loaded it once sees one configuration.
type Set struct {
	byName  map[string]*Domain
	domains []*Domain
	rules   []*Rule
	only    []byte // see OnlyList
}

// Rules returns all rules in the order of their files. Read only.
func (s *Set) Rules() []*Rule { return s.rules }

// Domains returns all domains in the order of their files. Read only.
func (s *Set) Domains() []*Domain { return s.domains }

// Domain returns the domain of that name, or nil.
func (s *Set) Domain(name []byte) *Domain { return s.byName[string(name)] }

// OnlyList returns the name of the only domain that is an ordered list; nil if no domain or several are one. Read only.
func (s *Set) OnlyList() []byte { return s.only }

func (s *Set) findOnlyList() {
	var names [][]byte
	for _, d := range s.domains {
		if _, ordered := d.matcher.(*orderedList); ordered {
			names = append(names, []byte(d.Name))
		}
	}
	if len(names) == 1 {
		s.only = names[0]
	}
}

// Domain is the rules of one domain.
type Domain struct {
	Index int // in Set.Domains
	Name  string
	Divvy bool // from a rule file of divvy
	// Fallback decides on limits that come with requests when the store does not answer.
	Fallback backend.Fallback

	// Replacing is set if a rule of the domain replaces others. Only then do callers need a Replaced.
	Replacing bool

	pos         Pos
	matcher     matcher
	escapedName string   // Name as it stands in escaped keys, see Keys
	keys        []string // see Descriptors
}

// matcher is one way to search a domain: a *tree, an *orderedList or a *wordTree.
type matcher interface {
	// find is Domain.Find.
	find(entries []Entry, s *Scratch, canaries []*Rule) (*Rule, []*Rule)
	// explain is Domain.Explain.
	explain(entries []Entry) *Walk
}

// Scratch is memory that Find keeps for its next call. Its zero value is ready to use.
type Scratch struct {
	joined []byte
	values [][]byte
}

// Reset forgets the last request. It frees each buffer that is larger than maxBytes.
func (s *Scratch) Reset(maxBytes int) {
	clear(s.values[:cap(s.values)])
	if cap(s.joined) > maxBytes {
		s.joined = nil
	}
	if cap(s.values) > maxBytes/24 { // a []byte takes 24 bytes
		s.values = nil
	}
}

// Find returns the rule that applies to a descriptor with these entries, or nil. It allocates nothing once s has grown.
//
//   - In a tree of descriptors, that is the rule at which the entries end. On each level an exact key and value is preferred to
//     wildcards, which are tried in file order, and those to a key alone. The search never goes back to a level.
//   - In an ordered list it is the first that matches and is not a canary. The canaries before it are appended to canaries: they are
//     charged too. If only canaries match, Find returns the last one.
//   - In a tree of limits it is the deepest node that the words of the entries lead to, charged with the nodes above it.
func (d *Domain) Find(entries []Entry, s *Scratch, canaries []*Rule) (*Rule, []*Rule) {
	return d.matcher.find(entries, s, canaries)
}

// Explain searches like Find and returns a record of the search for people. It is slower and allocates.
func (d *Domain) Explain(entries []Entry) *Walk { return d.matcher.explain(entries) }

// Descriptors returns the names of all descriptors in file order, also of those without a limit. Names have the form of Rule.Key. A
// descriptor with several limits has a name for each. Read only.
func (d *Domain) Descriptors() []string { return d.keys }

// Words reports whether the domain is a tree of limits, whose requests are paths of words.
func (d *Domain) Words() bool {
	_, words := d.matcher.(*wordTree)
	return words
}

// Replaced is the set of names that the rules of one request replace. Its zero value is empty.
type Replaced struct{ names map[string]bool }

// Reset empties p.
func (p *Replaced) Reset() { clear(p.names) }

// Add adds r.Replaces.
func (p *Replaced) Add(r *Rule) {
	if p.names == nil {
		p.names = make(map[string]bool)
	}
	for _, name := range r.Replaces {
		p.names[name] = true
	}
}

// Has reports whether r is replaced, so that it does not apply. Unlimited rules are never replaced.
func (p *Replaced) Has(r *Rule) bool { return !r.Unlimited && p.names[r.Name] }
