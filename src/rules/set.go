package rules

import (
	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Entry is one key and value of a request's descriptor. The bytes belong to
// the caller.
type Entry struct {
	Key, Value []byte
}

// Rule is a limit as configured. It is immutable.
//
// What Find returns may be no limit of its own but stand for a descriptor that
// has several, or none where levels above it are charged: Index is then -1,
// and what is set are Key to Pos, Quota, Metadata, Charges and AllOrNone.
type Rule struct {
	// Index is the rule's place in Set.Rules.
	Index int
	// Key names the rule wherever operators meet it: the domain and the
	// levels down to the rule as configured, "basic.parent_p.child". Behind that
	// the second and further items of a list have their name, or where they
	// have none their number: "basic.parent_p.child.2".
	Key string
	// Domain and Path are the same in parts: the levels from the top down.
	Domain string
	Path   []Level
	// Pos is the descriptor's, for items of a list their own.
	Pos Pos
	// Name is told to callers; may be empty.
	Name string
	Quantity
	// Unlimited rules let everything pass and are never sent to a store.
	// Their Limit is empty.
	Unlimited bool
	// Shadow rules are judged and charged, but never refuse.
	Shadow bool
	// Quota rules refuse a request only if all its quota rules do.
	Quota bool
	// Detailed rules are counted apart for each combination of request values.
	Detailed bool
	// Metadata is sent back with answers; nil for none. It is shared by all
	// answers: nobody may write to it.
	Metadata map[string]any
	// Limit is the arithmetic that stores work with.
	Limit algorithm.Limit

	// Listed is what only a rule of an ordered list has; nil for others.
	Listed *Listed

	// Charges are what a descriptor that Find found the rule for is charged to,
	// in this order: limits of levels above it, outermost first, and its own.
	// Their own Charges mean nothing there. Nil: the rule alone.
	Charges []*Rule
	// Fallback is what becomes of a hit that its store does not answer.
	Fallback backend.Fallback
	// Joint rules stand beside others in some Charges: one key may have windows
	// of several lengths, which a store has to keep apart, and levels that it has
	// to keep together. The rule says so, not the request, since a level may be
	// met alone, too, and has one counter.
	Joint bool
	// AllOrNone charges a descriptor that Find found the rule for only if all
	// its Charges pass; one alone then does not count what it refuses.
	AllOrNone bool

	ChargePath bool      // charge: path holds here
	shared     bool      // some level shares its threshold
	perValue   bool      // see PerValue
	ByPeriod   bool      // written with period, not with unit
	item       int32     // the length of what Key has behind the levels
	name       int32     // the number of Name in the domain's replaces lists; -1: no rule replaces it
	words      *wordPath // where it stands in a tree of limits; nil: elsewhere
	replaces   *replaces // nil: nothing
}

// Listed is what a rule of an ordered list has, which has no Path.
type Listed struct {
	// Match is what the rule matches by, sorted by key.
	Match []Pair
	// Per names the entries whose values are counted apart; a missing one counts as empty.
	Per []string
	// Canary says that the rule was written with shadow_mode. It is a canary, too, where it
	// answers because no other rule matches.
	Canary bool

	key *orderedKey // what the keys of its counters are made of; nil: it is several limits
}

// replaces are the names that a rule replaces, and their numbers in the domain.
type replaces struct {
	names   []string
	numbers []int
}

// Ordered reports whether r is of an ordered list.
func (r *Rule) Ordered() bool { return r.Listed != nil }

// Replaces names the rules that do not apply where r does. The slice is the Rule's own.
func (r *Rule) Replaces() []string {
	if r.replaces == nil {
		return nil
	}
	return r.replaces.names
}

// Names are where a limit stands in a tree of limits, `*` for any word. Such a rule has no Path.
// The slice is the Rule's own.
func (r *Rule) Names() []string {
	if r.words == nil {
		return nil
	}
	return r.words.names
}

// limits are what a descriptor is charged to that r was found for.
func (r *Rule) limits() []*Rule {
	if r.Charges != nil {
		return r.Charges
	}
	return []*Rule{r}
}

// Set is everything that is configured, compiled. It is immutable, so a
// request that loaded it once sees one consistent configuration.
type Set struct {
	byName  map[string]*Domain
	domains []*Domain
	rules   []*Rule
	only    []byte // see OnlyList
}

// Rules are all rules in the order of their files. The slice is the Set's own.
func (s *Set) Rules() []*Rule { return s.rules }

// Domains are all domains in the order of their files. The slice is the Set's
// own.
func (s *Set) Domains() []*Domain { return s.domains }

// OnlyList is the name of the domain that is an ordered list, nil where there is
// none or more than one. The bytes are the Set's own.
func (s *Set) OnlyList() []byte { return s.only }

func (s *Set) findOnlyList() {
	lists := 0
	for _, d := range s.domains {
		if d.Ordered() {
			lists++
			s.only = []byte(d.Name)
		}
	}
	if lists != 1 {
		s.only = nil
	}
}

// Domain is the domain of that name, or nil.
func (s *Set) Domain(name []byte) *Domain { return s.byName[string(name)] }

// Domain is the rules of one domain: a tree of descriptors, an ordered list, or a
// tree of limits.
type Domain struct {
	// Index is the domain's place in Set.Domains.
	Index int
	Name  string
	// Divvy says that the domain is a rule file of divvy.
	Divvy bool
	// Fallback is what becomes of hits on limits that come with requests when
	// their store does not answer, and on rules that do not say.
	Fallback backend.Fallback

	root     node
	list     *orderedList // instead of root; nil: none
	words    *wordNode    // instead of root, a tree of limits; nil: none
	escaped  string       // Name in escaped keys, see Keys
	keys     []string     // of all descriptors, see Descriptors
	replaced int          // how many names the replaces lists of its rules have
}

// Descriptors names all descriptors of the domain, those without a limit
// included, as Rule.Key would, in file order; behind one with several limits
// stand the further ones. The slice is the Domain's own.
func (d *Domain) Descriptors() []string { return d.keys }

// Ordered reports whether the domain is an ordered list.
func (d *Domain) Ordered() bool { return d.list != nil }

// Words reports whether the domain is a tree of limits, whose requests are paths
// of words.
func (d *Domain) Words() bool { return d.words != nil }

// node is a descriptor of the tree: its rule, and the level below it.
type node struct {
	rule     *Rule  // nil: no limit here
	children *level // nil: none
	at       *place // nil: where the rule is, or the root
}

// level is the descriptors below one.
type level struct {
	keys      table[*keyed]
	wildcards []wildcard // in file order
}

// place is a descriptor as it was written, and where; for messages.
type place struct {
	Pos
	key, value string
}

// keyed is what one level knows of one key.
type keyed struct {
	any    *node // the descriptor without a value; nil: none
	values table[*node]
}

type wildcard struct {
	pattern
	node *node
	text string
}

// Find returns the rule that answers for a descriptor with these entries, or nil.
//
// In a tree it is that at which the entries end. A rule above or below the last
// entry does not apply, but for those above that are among its Charges. At each
// level an exact key and value comes before the wildcards in file order, and
// those before a key alone; once taken, a branch is not left again.
//
// In an ordered list it is the first that matches and is not in shadow mode; if
// there is none, the last that matches.
//
// In a tree of limits it is that of the deepest level that the words of the
// entries lead to, with those above it.
func (d *Domain) Find(entries []Entry, joined *[]byte) *Rule {
	if d.list != nil {
		r, _ := d.list.find(d.list.fill(nil, entries), nil)
		return r
	}
	return d.walk(entries, joined)
}

// Scratch is memory that Meet works in, and keeps for its next call. Its zero
// value is good.
type Scratch struct {
	joined []byte
	values [][]byte
}

// Forget lets go of the last request, and of memory beyond most bytes.
func (s *Scratch) Reset(most int) {
	clear(s.values[:cap(s.values)])
	if cap(s.joined) > most {
		s.joined = nil
	}
	if cap(s.values) > most/24 {
		s.values = nil
	}
}

// Meet is Find, and appends to canaries the rules of an ordered list that match
// before that one, in shadow mode, in order: they are charged besides. It grows s
// and allocates nothing else.
func (d *Domain) Meet(entries []Entry, s *Scratch, canaries []*Rule) (*Rule, []*Rule) {
	if d.list != nil {
		s.values = d.list.fill(s.values, entries)
		return d.list.find(s.values, canaries)
	}
	return d.walk(entries, &s.joined), canaries
}

func (d *Domain) walk(entries []Entry, joined *[]byte) *Rule {
	if d.words != nil {
		return d.words.find(entries)
	}
	n := &d.root
	for i := range entries {
		if n = n.child(&entries[i], joined); n == nil {
			return nil
		}
	}
	return n.rule
}

func (n *node) child(e *Entry, joined *[]byte) *node {
	l := n.children
	if l == nil {
		return nil
	}
	k := l.keys.find(e.Key)
	if k != nil && len(e.Value) > 0 {
		if next := k.values.find(e.Value); next != nil {
			return next
		}
	}
	if len(l.wildcards) > 0 {
		text := append((*joined)[:0], e.Key...)
		text = append(text, '_')
		text = append(text, e.Value...)
		*joined = text
		for i := range l.wildcards {
			if l.wildcards[i].match(text) {
				return l.wildcards[i].node
			}
		}
	}
	if k != nil {
		return k.any
	}
	return nil
}
