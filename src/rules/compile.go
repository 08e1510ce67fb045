package rules

import (
	"fmt"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules/datafile"
)

// MaxTreeDepth is the most levels of descriptors, or of words, below each other. Each rule holds the names of all levels above it.
const MaxTreeDepth = 100

// maxTotalNameBytes is the most bytes that the names of all levels may have together. A value of a megabyte that aliases repeat on 100
// levels would take gigabytes, while 100,000 rules with names of 100 bytes need 10 MB.
const maxTotalNameBytes = 256 << 20

// maxComparedItems is the most items of a list that are compared with all items before them.
const maxComparedItems = 1000

// Options are the options with which rules are compiled.
type Options struct {
	// MergeDomains allows one domain in several files: their top-level descriptors are joined in file order.
	MergeDomains bool
	// Store tells what the store of the counters supports. Limits that it cannot count are refused.
	Store StoreSupport
	// ChargesAllOrNothing says that the limiter charges a request only if all of it passes. count_blocked has no effect then.
	ChargesAllOrNothing bool
	// Fallback decides hits that the store does not answer, unless the rules have on_store_failure.
	Fallback backend.Fallback
}

// StoreSupport describes what the store of the counters supports. The zero value supports everything.
type StoreSupport struct {
	StoreName             string           // StoreName is the name of the store in messages.
	Algorithms            []algorithm.Kind // Algorithms are the algorithms that the store supports; empty means all.
	AlwaysCountsBlocked   bool             // AlwaysCountsBlocked says that the store always counts refused hits.
	CannotChargeAllOrNone bool             // CannotChargeAllOrNone says that the store cannot charge several limits all or none.
	WhyNoHolds            string           // WhyNoHolds says why the store cannot keep holds; empty if it can.
	AlternativeStores     []string         // AlternativeStores are the names of the stores that support everything, at least two.
}

// Compile turns configurations into a Set. The error, if any, is Problems, with everything that is wrong. Warnings tell what is valid
// but has no effect; they are returned only with a Set.
func Compile(configs []DomainConfig, opt Options) (*Set, Problems, error) {
	c := NewCompiler(opt)
	for i := range configs {
		c.AddConfig(&configs[i])
	}
	return c.Result()
}

// Shared is what the Compilers of one load share, if each of them compiles a part of the rules. Its zero value is ready to use. One
// goroutine at a time may use it and its Compilers.
type Shared struct {
	totalNameBytes int                                            // totalNameBytes counts the bytes of all names. Beyond maxTotalNameBytes no rule is added.
	zones          map[string]*time.Location                      // zones has the time zones of all limits, by name.
	calendars      map[algorithm.CalendarSpec]*algorithm.Calendar // calendars has the calendars of all limits, so that equal ones share their last window.
}

// Reuse counts the names of a Set that a Compiler of an earlier load made, and that this load has again. It returns false if all names
// together are too long.
func (s *Shared) Reuse(set *Set) bool {
	s.totalNameBytes += set.nameBytes
	return s.totalNameBytes <= maxTotalNameBytes
}

// Release takes back a Set that was counted by Reuse or compiled by a Compiler of s.
func (s *Shared) Release(set *Set) { s.totalNameBytes -= set.nameBytes }

// NewCompiler returns a Compiler without configurations.
func (s *Shared) NewCompiler(opt Options) *Compiler {
	if s.zones == nil {
		s.zones, s.calendars = make(map[string]*time.Location), make(map[algorithm.CalendarSpec]*algorithm.Calendar)
	}
	return &Compiler{
		options: opt, shared: s, set: &Set{domainsByName: make(map[string]*Domain)},
		countBlockedPos: make(map[*Rule]Pos), holdIDPos: make(map[*Rule]Pos),
	}
}

// Compiler compiles configurations one by one.
type Compiler struct {
	options           Options
	shared            *Shared
	set               *Set
	lastConfig        *DomainConfig // lastConfig is the configuration of the last AddConfig; nil before the first.
	lastPath          compilePath   // lastPath is the path of the descriptors at the top of lastConfig.
	lastRoot          *node         // lastRoot is the parent of the descriptors at the top of lastConfig.
	problems          Problems
	warnings          Problems
	replacingRules    []replacingRule
	inheritedSettings []*inheritedSetting
	countBlockedPos   map[*Rule]Pos    // countBlockedPos maps limits with `count_blocked: true` to the position of that setting.
	holdIDPos         map[*Rule]Pos    // holdIDPos maps limits with a hold_id to the position of that setting.
	namesTooLong      bool             // namesTooLong is set if a rule was not added because all names together are too long.
	quotaBuckets      bool             // quotaBuckets says that the domain of lastConfig has quota_buckets.
	warnedKeys        map[keyPair]bool // warnedKeys are the keys in that domain of which checkKeyOrder has warned.
}

// compilePath is the place in a domain of what the compiler compiles.
type compilePath struct {
	domain   *Domain
	ruleName string // ruleName is the Rule.FullName of a rule at this place.
	levels   []Level
	inheritance
	bucketKeys
	dataFiles        datafile.Files
	hasNoNestedRules bool // hasNoNestedRules is set in ordered lists and trees of limits: no descriptors can be nested below their rules.
	fallback         backend.Fallback
}

// replacingRule is a rule that replaces the rules whose names it lists.
type replacingRule struct {
	rule          *Rule
	replacedNames []Positioned[string]
}

// NewCompiler returns a Compiler without configurations.
func NewCompiler(opt Options) *Compiler { return new(Shared).NewCompiler(opt) }

// Discard forgets all configurations, whose names do not count any more. No other method may be called after it.
func (c *Compiler) Discard() { c.shared.Release(c.set) }

// AddConfig compiles a configuration. ExtendConfig may add to it until the next AddConfig.
func (c *Compiler) AddConfig(cfg *DomainConfig) {
	c.FinishConfig()
	d := c.addDomain(cfg)
	d.Fallback = c.parseFallback(c.options.Fallback, cfg.Fallback)
	c.setQuotaBuckets(d, cfg)
	c.lastConfig = cfg
	c.lastPath = compilePath{
		domain: d, ruleName: cfg.Domain, fallback: d.Fallback, dataFiles: cfg.DataFiles,
		inheritance: c.inheritanceWith(inheritance{}, cfg.ChargeMode, cfg.OnReject),
	}
	t, isTree := d.matcher.(*descriptorTree)
	if !isTree {
		t = &descriptorTree{} // Descriptors beside rules are an error; a tree outside the domain lets the compiler check them too.
	}
	c.lastRoot = &t.root
	c.compileDescriptors(c.lastRoot, cfg.Descriptors, c.lastPath)
}

// addDomain returns the domain for cfg. If the set cannot take it, that is a problem, and the domain is not added to the set.
func (c *Compiler) addDomain(cfg *DomainConfig) *Domain {
	d := &Domain{
		Name: cfg.Domain, Index: len(c.set.domains), escapedName: escapedKeyPart(cfg.Domain), FromDivvyFile: cfg.FromDivvyFile,
		pos: cfg.Pos, matcher: &descriptorTree{},
	}
	switch {
	case cfg.Rules != nil:
		d.matcher = &orderedList{slotByKey: make(map[string]int)}
	case cfg.LimitTree != nil:
		d.matcher = &limitTree{}
	}
	other := c.set.domainsByName[cfg.Domain]
	switch {
	case cfg.Domain == "":
		c.problems.Add(cfg.Pos, "add `domain: <name>`, the name that callers ask for", "the domain is missing or empty")
	case other == nil:
		c.set.domainsByName[cfg.Domain] = d
		c.set.domains = append(c.set.domains, d)
	case !isDescriptorTree(d) || !isDescriptorTree(other):
		c.problems.Add(cfg.Pos, "rename one: a list of rules, or a tree of limits, is not joined with another file",
			"domain %s is already defined at %v", Quote(cfg.Domain), other.pos)
	case !c.options.MergeDomains:
		c.problems.Add(cfg.Pos, "join the two, rename one, or set MERGE_DOMAIN_CONFIG=true",
			"domain %s is already defined at %v", Quote(cfg.Domain), other.pos)
	default:
		return other
	}
	return d
}

func isDescriptorTree(d *Domain) bool {
	_, is := d.matcher.(*descriptorTree)
	return is
}

// ExtendConfig compiles further descriptors, or rules, of the configuration of the last AddConfig.
func (c *Compiler) ExtendConfig(cfg *DomainConfig) {
	c.compileDescriptors(c.lastRoot, cfg.Descriptors, c.lastPath)
	if cfg.Rules != nil {
		c.lastConfig.Rules.Value = append(c.lastConfig.Rules.Value, cfg.Rules.Value...)
	}
}

// FinishConfig compiles what is left of the configuration of the last AddConfig, whose memory can be freed then. AddConfig and Result do so,
// too. ExtendConfig may not be called before the next AddConfig.
func (c *Compiler) FinishConfig() {
	cfg := c.lastConfig
	if cfg == nil {
		return
	}
	c.lastConfig = nil
	switch m := c.lastPath.domain.matcher.(type) {
	case *orderedList:
		if len(cfg.Descriptors) > 0 {
			c.problems.Add(cfg.Rules.Pos, "put them into files of their own, each with a domain", "rules and descriptors exclude each other")
		}
		c.compileOrderedList(m, cfg, c.lastPath)
	case *limitTree:
		c.compileLimitTree(m, cfg, c.lastPath)
	}
}

// Result returns what Compile returns for all added configurations.
func (c *Compiler) Result() (*Set, Problems, error) {
	c.FinishConfig()
	if len(c.problems) > 0 {
		c.problems.Sort()
		return nil, nil, c.problems
	}
	c.warnUnknownReplacedNames()
	c.warnDuplicateNames()
	c.set.divideRules()
	c.set.findOnlyOrderedList()
	for _, d := range c.set.domains {
		if t, is := d.matcher.(*descriptorTree); is {
			c.warnHiddenDescriptors(&t.root)
		}
	}
	for _, s := range c.inheritedSettings {
		if !s.hasEffect {
			c.warnings.Add(s.pos, s.yamlKey.noEffectFix, "%s", s.yamlKey.noEffectWarning)
		}
	}
	c.warnings.Sort()
	return c.set, c.warnings, nil
}

// countNameBytes counts the bytes of a new name. It returns false if all names together are too long.
func (c *Compiler) countNameBytes(at Pos, size int) bool {
	c.shared.totalNameBytes += size
	c.set.nameBytes += size
	if c.shared.totalNameBytes <= maxTotalNameBytes {
		return true
	}
	if !c.namesTooLong {
		c.namesTooLong = true
		c.problems.Add(at, "use fewer levels or shorter values",
			"the names of the rules, with the levels above them, are longer than %d MB together", maxTotalNameBytes>>20)
	}
	return false
}

// parseFallback returns the fallback that v, the value of on_store_failure, names. If v is nil, it returns the inherited one.
func (c *Compiler) parseFallback(inherited backend.Fallback, v *Positioned[string]) backend.Fallback {
	if v == nil {
		return inherited
	}
	f, known := backend.ParseFallback(v.Value)
	if !known {
		c.problems.Add(v.Pos, SuggestFix(v.Value, backend.FallbackNames(), "write "+JoinWithOr(backend.FallbackNames())), "on_store_failure is not known: %s", Quote(v.Value))
	}
	return f
}

// warnUnknownReplacedNames warns of names in replaces that no rule of the domain has.
func (c *Compiler) warnUnknownReplacedNames() {
	type name struct{ domain, name string }
	replaceable := make(map[name]bool)
	for _, r := range c.set.rules {
		if !r.Unlimited && len(c.replacingRules) > 0 {
			replaceable[name{r.Domain, r.Name}] = true
		}
	}
	for _, by := range c.replacingRules {
		for _, other := range by.replacedNames {
			if !replaceable[name{by.rule.Domain, other.Value}] {
				c.warnings.Add(other.Pos, "check the spelling, or remove it", "no rule of the domain that could be replaced is named %s",
					Quote(other.Value))
			}
		}
	}
}

// warnDuplicateNames warns of rules with the same name on different levels, such as c below a_b and b_c below a.
func (c *Compiler) warnDuplicateNames() {
	byName := make(map[string]*Rule, len(c.set.rules))
	for _, r := range c.set.rules {
		if other := byName[r.FullName]; other != nil {
			c.warnings = append(c.warnings, sameNameWarning(r, other))
		}
		byName[r.FullName] = r
	}
}

// sameNameWarning returns the warning that r has the name of other.
func sameNameWarning(r, other *Rule) Problem {
	return Problem{
		Pos: r.Pos, Fix: "rename one of them",
		Message: fmt.Sprintf("%s is the name of the rule at %v, too: they share their statistics and may share counters", Quote(r.FullName), other.Pos),
	}
}
