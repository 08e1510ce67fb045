package rules

import (
	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// MaxDepth is how deep descriptors, or words, may nest. Each rule carries the names of all levels above it.
const MaxDepth = 100

// maxNames bounds the names of all levels together, in bytes: one value of a megabyte, aliased on 100 levels, is gigabytes.
// 100,000 rules with names of 100 bytes need 10 MB.
const maxNames = 256 << 20

// maxCompared bounds searches that compare each of a list with all before it.
const maxCompared = 1000

// Options are what a set of rules is compiled with.
type Options struct {
	// MergeDomains allows one domain in several files: their top-level descriptors are joined in file order.
	MergeDomains bool
	// Store is the store of the counters. Rules that it cannot count are refused.
	Store Store
	// AllOrNothing says that the limiter charges a request only if all of it passes. count_blocked has no effect then.
	AllOrNothing bool
	// AllDocuments checks all documents of a YAML file. Only the first ever takes effect, as in envoyproxy/ratelimit.
	AllDocuments bool
	// Fallback decides about hits whose store does not answer, where the rules do not say.
	Fallback backend.Fallback
}

// Store is what the store of the counters can do. The zero value can do everything.
type Store struct {
	Name          string           // in messages
	Kinds         []algorithm.Kind // the algorithms that it knows; empty: all
	CountsBlocked bool             // it always counts refused hits
	NoGroups      bool             // it cannot charge several limits all or none
	Others        []string         // the stores that can do everything, two at least
}

// Compile turns configurations into a Set. The error, if any, is Problems: everything that is wrong. Warnings name what is valid but
// has no effect; they come with a good Set only.
func Compile(configs []DomainConfig, opt Options) (*Set, Problems, error) {
	c := NewCompiler(opt)
	for i := range configs {
		c.Add(&configs[i])
	}
	return c.Done()
}

// Compiler compiles configurations one by one.
type Compiler struct {
	opt       Options
	set       *Set
	cfg       *DomainConfig // the last one of Add; nil: none
	top       path          // of cfg
	root      *node         // for the descriptors of cfg
	problems  Problems
	warnings  Problems
	replacing []replacing
	settings  []*setting
	blocked   map[*Rule]Pos // where count_blocked: true was written, until an error has said so
	names     int           // bytes of all names so far; beyond maxNames nothing is added
}

// path is where in a domain the compiler is.
type path struct {
	domain *Domain
	key    string // Rule.Key of a rule here
	levels []Level
	inherited
	flat     bool // in an ordered list or a tree of limits, which have no levels
	fallback backend.Fallback
}

// replacing is a rule that replaces others.
type replacing struct {
	rule *Rule
	list []Placed[string]
}

// NewCompiler returns a Compiler without configurations.
func NewCompiler(opt Options) *Compiler {
	return &Compiler{opt: opt, set: &Set{byName: make(map[string]*Domain)}, blocked: make(map[*Rule]Pos)}
}

// Add compiles a configuration. Extend may add to it until the next Add.
func (c *Compiler) Add(cfg *DomainConfig) {
	c.finish()
	d := c.domain(cfg)
	d.Fallback = c.fallback(c.opt.Fallback, cfg.Fallback)
	c.cfg = cfg
	c.top = path{domain: d, key: cfg.Domain, inherited: c.inherit(inherited{}, cfg.Charge, cfg.OnReject), fallback: d.Fallback}
	t, isTree := d.matcher.(*tree)
	if !isTree {
		t = &tree{} // to check descriptors that must not be there
	}
	c.root = &t.root
	c.descriptors(c.root, cfg.Descriptors, c.top)
}

// domain returns the domain for cfg. For one that cannot be added it is a domain outside the set, so that its rules are checked too.
func (c *Compiler) domain(cfg *DomainConfig) *Domain {
	d := &Domain{Name: cfg.Domain, Index: len(c.set.domains), escapedName: escaped(cfg.Domain), Divvy: cfg.Divvy, pos: cfg.Pos, matcher: &tree{}}
	switch {
	case cfg.Rules != nil:
		d.matcher = &orderedList{}
	case cfg.Tree != nil:
		d.matcher = &wordTree{}
	}
	other := c.set.byName[cfg.Domain]
	switch {
	case cfg.Domain == "":
		c.problems.Add(cfg.Pos, "add `domain: <name>`, the name that callers ask for", "the domain is missing or empty")
	case other == nil:
		c.set.byName[cfg.Domain] = d
		c.set.domains = append(c.set.domains, d)
	case !c.opt.MergeDomains || !isTree(d) || !isTree(other):
		fix := "join the two, rename one, or set MERGE_DOMAIN_CONFIG=true"
		if !isTree(d) || !isTree(other) {
			fix = "rename one: a list of rules, or a tree of limits, is not joined with another file"
		}
		c.problems.Add(cfg.Pos, fix, "domain %s is already defined at %v", Quote(cfg.Domain), other.pos)
	default:
		return other
	}
	return d
}

func isTree(d *Domain) bool {
	_, is := d.matcher.(*tree)
	return is
}

// Extend compiles further descriptors, or rules, of the last configuration.
func (c *Compiler) Extend(cfg *DomainConfig) {
	c.descriptors(c.root, cfg.Descriptors, c.top)
	if cfg.Rules != nil {
		c.cfg.Rules.Value = append(c.cfg.Rules.Value, cfg.Rules.Value...)
	}
}

// finish compiles what needs all of the last configuration.
func (c *Compiler) finish() {
	cfg := c.cfg
	if cfg == nil {
		return
	}
	switch m := c.top.domain.matcher.(type) {
	case *orderedList:
		if len(cfg.Descriptors) > 0 {
			c.problems.Add(cfg.Rules.Pos, "put them into files of their own, each with a domain", "rules and descriptors exclude each other")
		}
		c.list(m, cfg, c.top)
	case *wordTree:
		c.wordTree(m, cfg, c.top)
	}
}

// Done returns what Compile returns.
func (c *Compiler) Done() (*Set, Problems, error) {
	c.finish()
	if len(c.problems) > 0 {
		c.problems.Sort()
		return nil, nil, c.problems
	}
	c.set.findOnlyList()
	c.warnMissing()
	c.warnSameName()
	for _, d := range c.set.domains {
		if t, isTree := d.matcher.(*tree); isTree {
			c.warnHidden(&t.root)
		}
	}
	for _, s := range c.settings {
		if !s.effect {
			c.warnings.Add(s.at, s.fix, "%s", s.unused)
		}
	}
	c.warnings.Sort()
	return c.set, c.warnings, nil
}

// addName notes that a name of so many bytes is made. It reports false if all names together are too long.
func (c *Compiler) addName(at Pos, size int) bool {
	before := c.names
	if c.names += size; before <= maxNames && c.names > maxNames {
		c.problems.Add(at, "use fewer levels or shorter values",
			"the names of the rules, with the levels above them, are longer than %d MB together", maxNames>>20)
	}
	return c.names <= maxNames
}

// fallback returns what on_store_failure says, or what holds above.
func (c *Compiler) fallback(above backend.Fallback, v *Placed[string]) backend.Fallback {
	if v == nil {
		return above
	}
	f, known := backend.ParseFallback(v.Value)
	if !known {
		c.problems.Add(v.Pos, "write "+OneOf(backend.Fallbacks()), "on_store_failure is not known: %s", Quote(v.Value))
	}
	return f
}

// warnMissing warns of names to replace that no rule has.
func (c *Compiler) warnMissing() {
	type name struct{ domain, name string }
	replaceable := make(map[name]bool)
	for _, r := range c.set.rules {
		if !r.Unlimited && len(c.replacing) > 0 {
			replaceable[name{r.Domain, r.Name}] = true
		}
	}
	for _, by := range c.replacing {
		for _, other := range by.list {
			if !replaceable[name{by.rule.Domain, other.Value}] {
				c.warnings.Add(other.Pos, "check the spelling, or remove it", "no rule of the domain that could be replaced is named %s",
					Quote(other.Value))
			}
		}
	}
}

// warnSameName warns of rules with one name on different levels: a_b over c, and a over b_c.
func (c *Compiler) warnSameName() {
	byKey := make(map[string]*Rule, len(c.set.rules))
	for _, r := range c.set.rules {
		if other := byKey[r.Key]; other != nil {
			c.warnings.Add(r.Pos, "rename one of them",
				"%s is the name of the rule at %v, too: they share their statistics and may share counters", Quote(r.Key), other.Pos)
		}
		byKey[r.Key] = r
	}
}
