package rules

import (
	"cmp"
	"slices"
	"strings"

	"ratelimit/src/backend"
)

// maxDepth bounds how deep descriptors nest. A request needs one entry per
// level, and each rule carries the names of all levels above it.
const MaxDepth = 100

// maxNames bounds the names of all levels together, in bytes: each holds those
// above it, so one value of a megabyte, aliased on 100 levels, is gigabytes.
// 100,000 rules with names of 100 bytes need 10 MB.
const maxNames = 256 << 20

// maxCompared bounds the search for hidden wildcards on one level, which
// compares each with all before it.
const maxCompared = 1000

// Options are what a set of rules is compiled with.
type Options struct {
	// MergeDomains allows one domain in several files: their top-level
	// descriptors are joined, in file order.
	MergeDomains bool
	// Store is what the counters will be kept in. Rules that it cannot count by
	// are refused.
	Store Store
	// AllOrNothing says that the limiter charges a request only if all of it passes
	// (STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT), for warnings about that.
	AllOrNothing bool
	// AllDocuments checks all documents of a YAML file. Only the first takes effect, with or
	// without it, as in envoyproxy/ratelimit.
	AllDocuments bool
	// Fallback is what becomes of hits whose store does not answer, where the
	// rules do not say.
	Fallback backend.Fallback
}

// Compile turns configurations into a Set. The error, if any, is Problems:
// everything that is wrong, at once. The warnings name what is legal but
// cannot do what its author meant; they come with a good Set only.
func Compile(configs []DomainConfig, opt Options) (*Set, Problems, error) {
	c := NewCompiler(opt)
	for i := range configs {
		c.Add(&configs[i])
	}
	return c.Done()
}

func NewCompiler(opt Options) *Compiler {
	return &Compiler{opt: opt, set: &Set{byName: make(map[string]*Domain)}, first: make(map[string]Pos), blocked: make(map[*Rule]Pos)}
}

// begin compiles a configuration, to which more may add.
func (c *Compiler) Add(cfg *DomainConfig) {
	c.finish()
	d := c.set.byName[cfg.Domain]
	switch {
	case cfg.Domain == "":
		c.problems.Add(cfg.Pos, "add `domain: <name>`, the name that callers ask for", "the domain is missing or empty")
		d = &Domain{} // its descriptors are checked all the same
	case d == nil:
		d = &Domain{Name: cfg.Domain, Index: len(c.set.domains), escaped: escaped(cfg.Domain)}
		c.set.byName[cfg.Domain] = d
		c.set.domains = append(c.set.domains, d)
		c.first[cfg.Domain] = cfg.Pos
	case cfg.Rules != nil || cfg.Tree != nil || d.list != nil || d.words != nil:
		c.problems.Add(cfg.Pos, "rename one: a list of rules, or a tree of limits, is not joined with another file",
			"domain %s is already defined at %v", Quote(cfg.Domain), c.first[cfg.Domain])
		d = &Domain{}
	case !c.opt.MergeDomains:
		c.problems.Add(cfg.Pos, "join the two, rename one, or set MERGE_DOMAIN_CONFIG=true",
			"domain %s is already defined at %v", Quote(cfg.Domain), c.first[cfg.Domain])
		d = &Domain{}
	}
	d.Fallback = c.onFailure(c.opt.Fallback, cfg.Fallback)
	c.cfg = cfg
	c.top = path{domain: d, key: cfg.Domain, inherited: c.inherit(inherited{}, cfg.Charge, cfg.OnReject), onFailure: d.Fallback}
	c.level(&d.root, cfg.Descriptors, c.top)
}

// more compiles further descriptors, or rules, of the configuration that began last.
func (c *Compiler) Extend(cfg *DomainConfig) {
	c.level(&c.top.domain.root, cfg.Descriptors, c.top)
	if cfg.Rules != nil {
		c.cfg.Rules.Value = append(c.cfg.Rules.Value, cfg.Rules.Value...)
	}
}

// end compiles what needs all of a configuration.
func (c *Compiler) finish() {
	cfg, d := c.cfg, c.top.domain
	if cfg == nil {
		return
	}
	if cfg.Rules != nil {
		if len(cfg.Descriptors) > 0 {
			c.problems.Add(cfg.Rules.Pos, "put them into files of their own, each with a domain", "rules and descriptors exclude each other")
		}
		c.ordered(d, cfg, c.top)
		d.Divvy = cfg.Divvy
	}
	if cfg.Tree != nil {
		c.tree(d, cfg, c.top)
	}
	c.warnUnused(inherited{}, c.top.inherited, cfg.Charge, cfg.OnReject)
}

// done returns what Compile does.
func (c *Compiler) Done() (*Set, Problems, error) {
	c.finish()
	if len(c.problems) > 0 {
		c.problems.Sort()
		return nil, nil, c.problems
	}
	c.set.findOnlyList()
	c.replaces()
	c.warnSameName()
	for _, d := range c.set.domains {
		c.warnHidden(&d.root)
	}
	c.warnings.Sort()
	return c.set, c.warnings, nil
}

type Compiler struct {
	opt       Options
	set       *Set
	first     map[string]Pos // where each domain is defined
	cfg       *DomainConfig  // the one that began last; nil: none
	top       path           // of cfg
	problems  Problems
	warnings  Problems
	replacing []replacing
	blocked   map[*Rule]Pos // where count_blocked: true was written; until an error has said so
	names     int           // bytes of all names so far; beyond maxNames nothing is added
}

// path is where in a domain the compiler is.
type path struct {
	domain *Domain
	key    string // of a rule here: Rule.Key
	levels []Level
	inherited
	ordered   bool // a rule of an ordered list
	onFailure backend.Fallback
}

// replacing is a rule that replaces others.
type replacing struct {
	rule *Rule
	list []ReplacesConfig
}

// down is the path of a descriptor below p. All names of its level are parts of its key.
func (p path) down(cfg *DescriptorConfig) path {
	key := p.key + "." + composite(cfg)
	return path{
		domain:    p.domain,
		key:       key,
		levels:    append(slices.Clip(p.levels), newLevel(cfg, key[len(p.key)+len("."):])),
		inherited: p.inherited,
		onFailure: p.onFailure,
	}
}

// level adds the descriptors of one level below n, which is at p.
func (c *Compiler) level(n *node, descriptors []DescriptorConfig, p path) {
	if len(descriptors) > 0 && len(p.levels) == MaxDepth {
		c.problems.Add(descriptors[0].Pos, "use fewer levels; a request needs an entry for each",
			"descriptors are nested more than %d levels deep", MaxDepth)
		return
	}
	for i := range descriptors {
		cfg := &descriptors[i]
		if c.names > maxNames {
			return // noted when it happened
		}
		if !c.named(cfg.Pos, len(p.key)+len(cfg.Key)+len(cfg.Value)+len("._")) {
			return
		}
		child := &node{} // checked also where it has no place in the tree
		below := p.down(cfg)
		here := &below.levels[len(p.levels)]
		c.literal(cfg.Pos, cfg.Key, cfg.Value)
		if cfg.Key == "" {
			c.problems.Add(cfg.Pos, "add `key: <name>`", "the descriptor has no key, or an empty one")
		} else if other := n.add(here, child); other != nil {
			c.problems.Add(cfg.Pos, "remove one, or join their limits and descriptors",
				"descriptor %s is already defined at %v, on the same level", Quote(here.text), other.place().Pos)
		}
		before := len(c.set.rules)
		p.domain.keys = append(p.domain.keys, below.key)
		below.inherited = c.inherit(p.inherited, cfg.Charge, cfg.OnReject)
		child.rule = c.match(cfg, below, c.limits(cfg, below))
		if child.rule == nil || child.rule.Pos != cfg.Pos {
			child.at = &place{cfg.Pos, here.Key(), here.Value()}
		}
		below.inherited = below.after(child.rule)
		c.level(child, cfg.Descriptors, below)
		c.warnUnused(p.inherited, below.inherited, cfg.Charge, cfg.OnReject)
		if len(c.set.rules) == before && (cfg.ValueToMetric || cfg.ShareThreshold) {
			c.warnings.Add(cfg.Pos, "remove it", "value_to_metric and share_threshold have no effect without a rate_limit here or below")
		}
	}
}

// named notes that a name of so many bytes is made; not if all names together
// are too long then.
func (c *Compiler) named(at Pos, size int) bool {
	if c.names += size; c.names > maxNames {
		c.problems.Add(at, "use fewer levels or shorter values",
			"the names of the rules, with the levels above them, are longer than %d MB together", maxNames>>20)
		return false
	}
	return true
}

// add puts child where requests will find it. If the place is taken it
// returns the node that is there.
func (n *node) add(at *Level, child *node) (taken *node) {
	if n.children == nil {
		n.children = &level{}
	}
	l, value := n.children, at.Value()
	k := l.keys.find([]byte(at.Key()))
	if k == nil {
		k = &keyed{}
		l.keys.add(at.Key(), k)
	}
	if value == "" {
		taken, k.any = k.any, cmp.Or(k.any, child)
	} else if taken = k.values.find([]byte(value)); taken == nil {
		k.values.add(value, child)
	}
	if taken == nil && at.wildcard {
		l.wildcards = append(l.wildcards, wildcard{compilePattern(at.text), child, at.text})
	}
	return taken
}

// place is where n was written; n is not a root.
func (n *node) place() place {
	if n.at != nil {
		return *n.at
	}
	l := &n.rule.Path[len(n.rule.Path)-1]
	return place{n.rule.Pos, l.Key(), l.Value()}
}

// composite is the name of one level: "key_value", or "key".
func composite(cfg *DescriptorConfig) string {
	if cfg.Value == "" {
		return cfg.Key
	}
	return cfg.Key + "_" + cfg.Value
}

// flags looks at what stands beside a rate_limit.
func (c *Compiler) flags(cfg *DescriptorConfig, p path) {
	if p.ordered {
		return
	}
	limited := cfg.RateLimit != nil || cfg.RateLimits != nil
	level := &p.levels[len(p.levels)-1]
	if cfg.ShareThreshold && !level.wildcard {
		c.problems.Add(cfg.Pos, "add a `*` to the value, or remove share_threshold", "share_threshold needs a wildcard, and %s has none", Quote(level.text))
	}
	if cfg.ValueToMetric && (cfg.ShareThreshold || !level.wildcard && cfg.Value != "") {
		c.warnings.Add(cfg.Pos, "remove it", "value_to_metric has no effect on %s: there is one value to show", Quote(level.text))
	}
	if cfg.ValueToMetric && cfg.DetailedMetric && limited {
		c.warnings.Add(cfg.Pos, "remove it", "value_to_metric has no effect beside detailed_metric")
	}
	if limited {
		return
	}
	charged := len(p.above) > 0 // then the answer is this descriptor's, though the limits are not
	for _, flag := range []struct {
		name string
		set  bool
	}{
		{"shadow_mode", cfg.ShadowMode && !allShadow(cfg.Descriptors)},
		{"quota_mode", cfg.QuotaMode && !charged},
		{"detailed_metric", cfg.DetailedMetric},
		{"metadata", cfg.Metadata != nil && !charged},
	} {
		if flag.set {
			c.warnings.Add(cfg.Pos, "move it to the descriptor that has the rate_limit; it is not inherited",
				"%s has no effect on a descriptor without rate_limit", flag.name)
		}
	}
}

// allShadow reports whether there are limits in list and below, and all of them are in
// shadow mode. Envoy Gateway writes shadow_mode on every level down to such limits.
func allShadow(list []DescriptorConfig) bool {
	found, all := shadowBelow(list)
	return found && all
}

// shadowBelow reports whether list and the levels below have limits, and whether all of
// them are in shadow mode.
func shadowBelow(list []DescriptorConfig) (found, all bool) {
	all = true
	for i := range list {
		cfg := &list[i]
		if cfg.RateLimit != nil || cfg.RateLimits != nil {
			found, all = true, all && cfg.ShadowMode
		}
		more, below := shadowBelow(cfg.Descriptors)
		found, all = found || more, all && below
	}
	return found, all
}

// replaces numbers the names that rules replace, domain by domain.
func (c *Compiler) replaces() {
	if len(c.replacing) == 0 {
		return
	}
	type name struct{ domain, name string }
	numbers := make(map[name]int)
	for _, by := range c.replacing {
		d := c.set.byName[by.rule.Domain]
		for _, cfg := range by.list {
			n, known := numbers[name{d.Name, cfg.Name}]
			if !known {
				n = d.replaced
				d.replaced++
				numbers[name{d.Name, cfg.Name}] = n
			}
			by.rule.replaces.numbers = append(by.rule.replaces.numbers, n)
		}
	}
	found := make(map[name]bool)
	for _, r := range c.set.rules {
		key := name{r.Domain, r.Name}
		if n, ok := numbers[key]; ok {
			r.name = int32(n)
			found[key] = found[key] || !r.Unlimited
		}
	}
	for _, by := range c.replacing {
		for _, cfg := range by.list {
			if !found[name{by.rule.Domain, cfg.Name}] {
				c.warnings.Add(cfg.Pos, "check the spelling, or remove it", "no rule of the domain that could be replaced is named %s", Quote(cfg.Name))
			}
		}
	}
}

// twins warns of rules whose names are the same though their levels are not:
// a_b over c, and a over b_c.
func (c *Compiler) warnSameName() {
	byKey := make(map[string]*Rule, len(c.set.rules))
	for _, r := range c.set.rules {
		if twin := byKey[r.Key]; twin != nil {
			c.warnings.Add(r.Pos, "rename one of them",
				"%s is the name of the rule at %v, too: they share their statistics and may share counters", Quote(r.Key), twin.Pos)
		}
		byKey[r.Key] = r
	}
}

// hidden warns of descriptors that no request can reach, on this level and
// below, because a wildcard before them takes all that they would match. Exact
// values go before all wildcards, so none of them is ever hidden.
func (c *Compiler) warnHidden(n *node) {
	if n.children == nil {
		return
	}
	wildcards := n.children.wildcards
	for i := range min(len(wildcards), maxCompared) {
		victim := &wildcards[i]
		for j := range i {
			if w := &wildcards[j]; w.hides(victim.text) {
				c.warnings.Add(victim.node.place().Pos, "put the more specific one first, or remove one",
					"no request can match %s: the wildcard %s at %v takes all of them", Quote(victim.text), Quote(w.text), w.node.place().Pos)
				break
			}
		}
	}
	for key, k := range n.children.keys.all() {
		if k.any != nil && !strings.Contains(key, "*") { // else it is a wildcard, compared above
			for i := range wildcards {
				if w := &wildcards[i]; w.covers(key + "_*") {
					c.warnings.Add(k.any.place().Pos, "remove it, or narrow the wildcard",
						"no request can match %s: the wildcard %s at %v comes before a key alone and takes all of them", Quote(key), Quote(w.text), w.node.place().Pos)
					break
				}
			}
		}
		for child := range k.nodes() {
			c.warnHidden(child)
		}
	}
}
