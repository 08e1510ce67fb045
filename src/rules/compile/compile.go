package compile

import (
	"fmt"
	"time"

	"ratelimit/src/rules"
	"ratelimit/src/rules/match"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules/datafile"
)

// maxTotalNameBytes is the most bytes that the names of all levels may have together. A value of a megabyte that
// aliases repeat on 100 levels would take gigabytes, while 100,000 rules with names of 100 bytes need 10 MB.
const maxTotalNameBytes = 256 << 20

// maxComparedItems is the most items of a list that are compared with all items before them.
const maxComparedItems = 1000

// Options are the options with which rules are compiled.
type Options struct {
	// MergeDomains allows one domain in several files: their top-level descriptors are joined in file order.
	MergeDomains bool
	// Store tells what the store of the counters supports. Limits that it cannot count are refused.
	Store StoreSupport
	// ChargesAllOrNothing says that the limiter charges a request only if all of it passes. count_blocked has no effect
	// then.
	ChargesAllOrNothing bool
	// Fallback decides hits that the store does not answer, unless the rules have on_store_failure.
	Fallback backend.Fallback
}

// StoreSupport describes what the store of the counters supports. The zero value supports everything.
type StoreSupport struct {
	StoreName             string           // the name of the store in messages
	Algorithms            []algorithm.Kind // the algorithms that the store supports; empty means all
	AlwaysCountsBlocked   bool             // the store always counts refused hits
	CannotChargeAllOrNone bool             // the store cannot charge several limits all or none
	WhyNoHolds            string           // says why the store cannot keep holds; empty if it can.
	AlternativeStores     []string         // the names of the stores that support everything, at least two
}

// Compile turns configurations into a Set. The error, if any, is Problems, with everything that is wrong. Warnings tell
// what is valid but has no effect; they are returned only with a Set.
func Compile(configs []DomainConfig, opt Options) (*rules.Set, rules.Problems, error) {
	c := new(Shared).NewCompiler(opt)
	for i := range configs {
		c.AddConfig(&configs[i])
	}
	return c.Result()
}

// Shared is what the Compilers of one load share, if each of them compiles a part of the rules. Its zero value is ready
// to use. One goroutine at a time may use it and its Compilers.
type Shared struct {
	// counts the bytes of all names. Beyond maxTotalNameBytes no rule is added.
	totalNameBytes int
	zones          map[string]*time.Location // the time zones of all limits, by name
	// the calendars of all limits, so that equal ones share their last window
	calendars map[algorithm.CalendarSpec]*algorithm.Calendar
}

// Reuse counts the names of a Set that a Compiler of an earlier load made, and that this load has again. It returns
// false if all names together are too long.
func (s *Shared) Reuse(set *rules.Set) bool {
	s.totalNameBytes += set.NameBytes()
	return s.totalNameBytes <= maxTotalNameBytes
}

// Release takes back a Set that was counted by Reuse.
func (s *Shared) Release(set *rules.Set) { s.totalNameBytes -= set.NameBytes() }

// NewCompiler returns a Compiler without configurations.
func (s *Shared) NewCompiler(opt Options) *Compiler {
	if s.zones == nil {
		s.zones, s.calendars = make(map[string]*time.Location), make(map[algorithm.CalendarSpec]*algorithm.Calendar)
	}
	return &Compiler{
		options: opt, shared: s, domainsByName: make(map[string]*rules.Domain),
		countBlockedPos: make(map[*rules.Rule]rules.Pos), holdIDPos: make(map[*rules.Rule]rules.Pos),
		enforcePercentPos: make(map[*rules.Rule]rules.Pos),
	}
}

// Compiler compiles configurations one by one.
type Compiler struct {
	options           Options
	shared            *Shared
	parts             rules.SetParts
	domainsByName     map[string]*rules.Domain
	problems          rules.Problems
	warnings          rules.Problems
	replacingRules    []replacingRule
	inheritedSettings []*inheritedSetting
	countBlockedPos   map[*rules.Rule]rules.Pos // maps limits with `count_blocked: true` to the position of that setting.
	holdIDPos         map[*rules.Rule]rules.Pos // maps limits with a hold_id to the position of that setting.
	enforcePercentPos map[*rules.Rule]rules.Pos // maps limits with enforce_percent to the position of that setting.
	namesTooLong      bool                      // set if a rule was not added because all names together are too long
	quotaBuckets      bool                      // the domain of the last AddConfig has quota_buckets
	warnedKeys        map[keyPair]bool          // the keys in that domain of which checkKeyOrder has warned
}

// compilePath is the place in a domain of what the compiler compiles.
type compilePath struct {
	domain   *rules.Domain
	ruleName string // the Rule.FullName of a rule at this place
	levels   []rules.Level
	inheritance
	bucketKeys
	descriptor       *rules.Descriptor // what the limits here have in common
	dataFiles        datafile.Files
	hasNoNestedRules bool // set in ordered lists and trees of limits: no descriptors can be nested below their rules
	fallback         backend.Fallback
}

// replacingRule is a rule that replaces the rules whose names it lists.
type replacingRule struct {
	rule          *rules.Rule
	replacedNames []Positioned[string]
}

// AddConfig compiles a configuration.
func (c *Compiler) AddConfig(cfg *DomainConfig) {
	d := c.addDomain(cfg)
	d.Fallback = c.parseFallback(c.options.Fallback, cfg.Fallback)
	c.setQuotaBuckets(d, cfg)
	path := compilePath{
		domain: d, ruleName: cfg.Domain, fallback: d.Fallback, dataFiles: cfg.DataFiles,
		inheritance: c.inheritanceWith(inheritance{}, cfg.ChargeMode, cfg.OnReject),
	}
	t, isTree := d.Matcher.(*match.Tree)
	if !isTree {
		// Descriptors beside rules are an error; a tree outside the domain lets the compiler check them too.
		t = &match.Tree{}
	}
	c.compileDescriptors(&t.Root, cfg.Descriptors, path)
	for i, part := range cfg.DescriptorParts {
		c.compileDescriptors(&t.Root, part, path)
		cfg.DescriptorParts[i] = nil
	}
	switch m := d.Matcher.(type) {
	case *match.List:
		if len(cfg.Descriptors) > 0 {
			c.problems.Add(cfg.Rules.Pos, "put them into files of their own, each with a domain",
				"rules and descriptors exclude each other")
		}
		c.compileOrderedList(m, cfg, path)
	case *match.WordTree:
		c.compileLimitTree(m, cfg, path)
	}
}

// addDomain returns the domain for cfg. If the set cannot take it, that is a problem, and the domain is not added to
// the set.
func (c *Compiler) addDomain(cfg *DomainConfig) *rules.Domain {
	form, matcher := rules.DescriptorTree, rules.Matcher(&match.Tree{})
	switch {
	case cfg.Rules != nil:
		form, matcher = rules.OrderedList, &match.List{SlotByKey: make(map[string]int)}
	case cfg.LimitTree != nil:
		form, matcher = rules.LimitTree, &match.WordTree{}
	}
	d := rules.NewDomain(cfg.Domain, form, cfg.Pos)
	d.Index, d.FromDivvyFile, d.Matcher = len(c.parts.Domains), cfg.FromDivvyFile, matcher
	other := c.domainsByName[cfg.Domain]
	switch {
	case cfg.Domain == "":
		c.problems.Add(cfg.Pos, "add `domain: <name>`, the name that callers ask for", "the domain is missing or empty")
	case other == nil:
		c.domainsByName[cfg.Domain] = d
		c.parts.Domains = append(c.parts.Domains, d)
	case d.Form != rules.DescriptorTree || other.Form != rules.DescriptorTree:
		c.problems.Add(cfg.Pos, "rename one: a list of rules, or a tree of limits, is not joined with another file",
			"domain %s is already defined at %v", rules.Quote(cfg.Domain), other.Pos)
	case !c.options.MergeDomains:
		c.problems.Add(cfg.Pos, "join the two, rename one, or set MERGE_DOMAIN_CONFIG=true",
			"domain %s is already defined at %v", rules.Quote(cfg.Domain), other.Pos)
	default:
		return other
	}
	return d
}

// Result returns what Compile returns for all added configurations.
func (c *Compiler) Result() (*rules.Set, rules.Problems, error) {
	if len(c.problems) > 0 {
		c.problems.Sort()
		return nil, nil, c.problems
	}
	c.warnUnknownReplacedNames()
	c.warnDuplicateNames()
	for _, d := range c.parts.Domains {
		if t, is := d.Matcher.(*match.Tree); is {
			c.warnHiddenDescriptors(&t.Root)
		}
	}
	for _, s := range c.inheritedSettings {
		if !s.hasEffect {
			c.warnings.Add(s.pos, s.yamlKey.noEffectFix, "%s", s.yamlKey.noEffectWarning)
		}
	}
	c.warnings.Sort()
	return rules.NewSet(c.parts), c.warnings, nil
}

// countNameBytes counts the bytes of a new name. It returns false if all names together are too long.
func (c *Compiler) countNameBytes(at rules.Pos, size int) bool {
	c.shared.totalNameBytes += size
	c.parts.NameBytes += size
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

// parseFallback returns the fallback that v, the value of on_store_failure, names. If v is nil, it returns the
// inherited one.
func (c *Compiler) parseFallback(inherited backend.Fallback, v *Positioned[string]) backend.Fallback {
	if v == nil {
		return inherited
	}
	f, known := backend.ParseFallback(v.Value)
	if !known {
		c.problems.Add(v.Pos, rules.SuggestFix(v.Value, backend.FallbackNames(),
			"write "+rules.JoinWithOr(backend.FallbackNames())), "on_store_failure is not known: %s", rules.Quote(v.Value))
	}
	return f
}

// warnUnknownReplacedNames warns of names in replaces that no rule of the domain has.
func (c *Compiler) warnUnknownReplacedNames() {
	type name struct{ domain, name string }
	replaceable := make(map[name]bool)
	for _, r := range c.parts.Rules {
		if !r.Unlimited && len(c.replacingRules) > 0 {
			replaceable[name{r.Domain, r.Name}] = true
		}
	}
	for _, by := range c.replacingRules {
		for _, other := range by.replacedNames {
			if !replaceable[name{by.rule.Domain, other.Value}] {
				c.warnings.Add(other.Pos, "check the spelling, or remove it",
					"no rule of the domain that could be replaced is named %s",
					rules.Quote(other.Value))
			}
		}
	}
}

// warnDuplicateNames warns of rules with the same name on different levels, such as c below a_b and b_c below a.
func (c *Compiler) warnDuplicateNames() {
	byName := make(map[string]*rules.Rule, len(c.parts.Rules))
	for _, r := range c.parts.Rules {
		if other := byName[r.FullName]; other != nil {
			c.warnings = append(c.warnings, sameNameWarning(r, other))
		}
		byName[r.FullName] = r
	}
}

// sameNameWarning returns the warning that r has the name of other.
func sameNameWarning(r, other *rules.Rule) rules.Problem {
	return rules.Problem{
		Pos: r.Pos, Fix: "rename one of them",
		Message: fmt.Sprintf("%s is the name of the rule at %v, too: they share their statistics and may share counters",
			rules.Quote(r.FullName), other.Pos),
	}
}

// WarnSameNames warns of rules of different Sets with the same name: c of the domain a.b and b.c of the domain a.
// Compilers warn of those in one Set.
func WarnSameNames(sets []*rules.Set) (warnings rules.Problems) {
	domains := make(map[string]*rules.Domain, len(sets))
	for _, s := range sets {
		for _, d := range s.Domains() {
			domains[d.Name] = d
		}
	}
	related := make(map[string]bool) // the domains whose names start with another one and a dot, and these others.
	for name := range domains {
		for i, c := range name {
			if c == '.' && domains[name[:i]] != nil {
				related[name], related[name[:i]] = true, true
			}
		}
	}
	if len(related) == 0 {
		return nil
	}
	byName := make(map[string]*rules.Rule)
	for _, s := range sets {
		for _, r := range s.Rules() {
			if !related[r.Domain] {
				continue
			}
			if other := byName[r.FullName]; other != nil && other.Domain != r.Domain {
				warnings = append(warnings, sameNameWarning(r, other))
			}
			byName[r.FullName] = r
		}
	}
	return warnings
}
