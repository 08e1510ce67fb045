package compile

import (
	"time"

	"ratelimit/src/rules"
	"ratelimit/src/rules/match"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Compile turns configurations into a Set. The error, if any, is Problems, with everything that is wrong. Warnings tell
// what is valid but has no effect; they are returned only with a Set.
func Compile(configs []DomainConfig, opt Options) (*rules.Set, rules.Problems, error) {
	c := new(Shared).NewCompiler(opt)
	for i := range configs {
		c.AddConfig(&configs[i])
	}
	return c.Result()
}

// NewCompiler returns a Compiler without configurations.
func (s *Shared) NewCompiler(opt Options) *Compiler {
	if s.zones == nil {
		s.zones, s.calendars = make(map[string]*time.Location), make(map[algorithm.CalendarSpec]*algorithm.Calendar)
	}
	limits := limitCompiler{options: opt, shared: s, countBlockedPos: make(map[*rules.Rule]rules.Pos)}
	return &Compiler{limitCompiler: limits, domainsByName: make(map[string]*rules.Domain)}
}

// AddConfig compiles a configuration.
func (c *Compiler) AddConfig(cfg *DomainConfig) {
	d := c.addDomain(cfg)
	d.Fallback = parseWord(&c.report, c.options.Fallback, cfg.Fallback, &backend.Fallbacks)
	d.Counting = parseWord(&c.report, c.options.Counting, cfg.Counting, &backend.Countings)
	d.OnContention = parseWord(&c.report, c.options.OnContention, cfg.OnContention, &backend.Contentions)
	c.setQuotaBuckets(d, cfg)
	c.warnedKeys = make(map[keyPair]bool)
	path := compilePath{
		domain: d, ruleName: cfg.Domain, dataFiles: cfg.DataFiles,
		notify:      c.notification(nil, cfg.Notify),
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
		path.chargePathSetting, path.hasNoNestedRules = &inheritedSetting{hasEffect: true}, true
		c.compileLimitNodes(&m.Root, cfg.LimitTree.Value, path, nil)
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
	d.Index, d.Origin, d.Matcher = len(c.parts.Domains), cfg.Origin, matcher
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
	warnDuplicateNames(&c.warnings, c.parts.Rules)
	for _, d := range c.parts.Domains {
		if t, is := d.Matcher.(*match.Tree); is {
			warnHiddenDescriptors(&c.warnings, &t.Root)
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
					"no rule of the domain that could be replaced is named %s", rules.Quote(other.Value))
			}
		}
	}
}

// warnDuplicateNames warns of rules with the same name on different levels, such as c below a_b and b_c below a.
func warnDuplicateNames(warnings *rules.Problems, list []*rules.Rule) {
	byName := make(map[string]*rules.Rule, len(list))
	for _, r := range list {
		if other := byName[r.FullName]; other != nil {
			warnSameName(warnings, r, other)
		}
		byName[r.FullName] = r
	}
}

// warnSameName warns that r has the name of other.
func warnSameName(warnings *rules.Problems, r, other *rules.Rule) {
	warnings.Add(r.Pos, "rename one of them",
		"%s is the name of the rule at %v, too: they share their statistics and may share counters",
		rules.Quote(r.FullName), other.Pos)
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
				warnSameName(&warnings, r, other)
			}
			byName[r.FullName] = r
		}
	}
	return warnings
}
