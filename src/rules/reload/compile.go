package reload

import (
	"cmp"
	"iter"
	"runtime"
	"slices"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// Format tells how the parts of a source become rules.
//
// Another kind of part, such as a file of values that rule files name, fits in here: Identify lists it, so that it is
// hashed and held back; Read gives the Piece of a rule file what it needs of the other part; and the unit of a domain
// has the other part among its parts, so that a change of either compiles the domain again.
type Format struct {
	// Identify returns the parts in the order in which they are compiled, with ID, Place and SortKey. If it is nil, the
	// parts have that order.
	Identify func([]Part) []Part
	// Read reads a part. Several goroutines call it at a time; the results are compiled in order.
	Read func(*Part) ReadPart
	// SortWarnings sorts warnings. ArrangeProblems sorts problems and removes those that repeat others.
	SortWarnings    func(rules.Problems)
	ArrangeProblems func(rules.Problems) rules.Problems
	// MaxPlaceBytes bounds the PlaceBytes of all parts together, and TooLarge is the problem of more. Zero is no bound.
	MaxPlaceBytes int
	TooLarge      rules.Problem
}

// ReadPart is what was read of a part.
type ReadPart struct {
	Config             *compile.DomainConfig // nil if there is nothing to compile
	PlaceBytes         int                   // the length of the places of all that Config has, in bytes
	Problems, Warnings rules.Problems
}

// unit has the rules of one domain. It is compiled alone, and again only when one of its parts changes. A part without
// rules, such as a file of tests, is a unit of its own.
type unit struct {
	domain     string      // empty if the unit has no rules
	parts      []Part      // no Data
	domainPos  []rules.Pos // the position of the domain in each part that has rules
	set        *rules.Set  // nil if the unit has problems
	problems   rules.Problems
	warnings   rules.Problems
	placeBytes int
}

// partVersion is one version of a part. Parts with the same version have the same rules with the same positions.
type partVersion struct {
	name, place string
	digest      Digest
}

func (p *Part) version() partVersion { return partVersion{p.Name, p.Place, p.Digest} }

// load is a load that has been compiled, or the rules in force.
type load struct {
	parts []Part  // no Data, and their domain
	units []*unit // in the order of their first parts. Those with problems have no set
}

// compiler compiles one load. Each round reads the parts of the domains that changed. Another round is needed if that
// shows that more domains changed.
type compiler struct {
	Format
	options    compile.Options
	shared     compile.Shared
	earlier    map[partVersion][]*unit // the units with sets of earlier loads
	parts      []Part
	unitNames  []string         // the unitName of each part. It is empty until the part is read
	compiled   map[string]*unit // the units that are done
	placeBytes int
}

// compileParts compiles parts. It takes unchanged units from earlier loads.
func compileParts(format Format, parts []Part, opt compile.Options, earlier ...*load) (*load, rules.Problems) {
	c := &compiler{
		Format: format, options: opt, parts: format.identify(parts), earlier: make(map[partVersion][]*unit),
		compiled: make(map[string]*unit),
	}
	c.unitNames = make([]string, len(c.parts))
	for _, l := range earlier {
		c.addEarlier(l)
	}
	l := &load{parts: withoutData(c.parts)}
	var problems rules.Problems
	if !c.compileAll() {
		for _, u := range c.compiled {
			problems = append(problems, u.problems...)
		}
		return l, append(problems, c.TooLarge)
	}
	taken := make(map[string]bool)
	for i, name := range c.unitNames {
		u := c.compiled[name]
		l.parts[i].domain = u.domain
		if !taken[name] {
			taken[name] = true
			l.units, problems = append(l.units, u), append(problems, u.problems...)
			u.problems = nil
		}
	}
	return l, problems
}

// identify returns parts with all fields, in the order in which they are compiled.
func (f *Format) identify(parts []Part) []Part {
	parts = slices.Clone(parts)
	if f.Identify != nil {
		parts = f.Identify(parts)
	}
	for i := range parts {
		p := &parts[i]
		p.ID, p.Place, p.SortKey = cmp.Or(p.ID, p.Name), cmp.Or(p.Place, p.Name), cmp.Or(p.SortKey, p.Name)
		p.setDigest()
	}
	return parts
}

func withoutData(parts []Part) []Part {
	parts = slices.Clone(parts)
	for i := range parts {
		parts[i].Data = nil
	}
	return parts
}

func (c *compiler) addEarlier(l *load) {
	if l == nil {
		return
	}
	for _, u := range l.units {
		for i := range u.parts {
			v := u.parts[i].version()
			if u.set != nil && !slices.Contains(c.earlier[v], u) {
				c.earlier[v] = append(c.earlier[v], u)
			}
		}
	}
}

// unitName returns the name in unitNames of a part with the domain.
func (c *compiler) unitName(part int, domain string) string {
	if domain == "" {
		return "part " + c.parts[part].Place
	}
	return "domain " + domain
}

// members returns the parts of each unit, in order, as far as they are known.
func (c *compiler) members() map[string][]int {
	members := make(map[string][]int)
	for i, name := range c.unitNames {
		if name != "" {
			members[name] = append(members[name], i)
		}
	}
	return members
}

// compileAll compiles all units. It returns false if the load is too large.
func (c *compiler) compileAll() (complete bool) {
	toRead := c.reuseUnits()
	for len(toRead) > 0 {
		if toRead, complete = c.compileRound(toRead); !complete {
			return false
		}
	}
	return true
}

// reuseUnits takes the units whose parts have not changed. It returns the parts of all others.
func (c *compiler) reuseUnits() (toRead []int) {
	for i := range c.parts {
		if known := c.earlier[c.parts[i].version()]; len(known) > 0 {
			c.unitNames[i] = c.unitName(i, known[0].domain)
		}
	}
	members := c.members()
	for i, name := range c.unitNames {
		list := members[name]
		if name == "" || list[0] != i {
			continue
		}
		for _, u := range c.earlier[c.parts[i].version()] {
			if c.hasParts(u, list) && c.shared.Reuse(u.set) {
				c.compiled[name], c.placeBytes = u, c.placeBytes+u.placeBytes
				break
			}
		}
	}
	for i, name := range c.unitNames {
		if c.compiled[name] == nil {
			toRead = append(toRead, i)
		}
	}
	return toRead
}

func (c *compiler) hasParts(u *unit, list []int) bool {
	return slices.EqualFunc(u.parts, list, func(p Part, i int) bool { return p.version() == c.parts[i].version() })
}

// openUnit is a unit that is being compiled.
type openUnit struct {
	unit
	compiler *compile.Compiler // nil if the round does not read all parts of the unit: the next one compiles it
}

// round is the state of compileRound.
type round struct {
	*compiler
	open      map[string]*openUnit
	openNames []string         // the keys of open, in the order in which they were added
	outside   map[string][]int // the parts of each unit that the round does not read
}

// compileRound reads parts and compiles the units that consist of them. It returns the parts to read in the next round,
// and false if the load is too large.
func (c *compiler) compileRound(parts []int) (readNext []int, complete bool) {
	r := &round{compiler: c, open: make(map[string]*openUnit)}
	for _, i := range parts {
		c.unitNames[i] = ""
	}
	r.outside = c.members()
	for part, read := range c.readInOrder(parts) {
		if r.add(part, read); c.MaxPlaceBytes > 0 && c.placeBytes > c.MaxPlaceBytes {
			for _, name := range r.openNames {
				c.compiled[name] = &r.open[name].unit
			}
			return nil, false
		}
	}
	return r.finish(), true
}

// add compiles what was read of a part.
func (r *round) add(part int, p ReadPart) {
	u := r.unitOf(part, p.Config)
	if u.compiler == nil {
		return
	}
	u.problems, u.warnings = append(u.problems, p.Problems...), append(u.warnings, p.Warnings...)
	u.placeBytes, r.placeBytes = u.placeBytes+p.PlaceBytes, r.placeBytes+p.PlaceBytes
	if p.Config != nil {
		u.compiler.AddConfig(p.Config)
	}
}

// unitOf returns the unit of the part i, whose configuration is cfg.
func (r *round) unitOf(i int, cfg *compile.DomainConfig) *openUnit {
	domain, part := "", r.parts[i]
	if cfg != nil {
		domain = cfg.Domain
	}
	name := r.unitName(i, domain)
	r.unitNames[i] = name
	u := r.open[name]
	if u == nil {
		u = &openUnit{unit: unit{domain: domain}}
		if r.outside[name] == nil {
			u.compiler = r.shared.NewCompiler(r.options)
		}
		r.open[name], r.openNames = u, append(r.openNames, name)
	}
	part.Data = nil
	u.parts = append(u.parts, part)
	if cfg != nil {
		u.domainPos = append(u.domainPos, cfg.Pos)
	}
	return u
}

// finish ends the round. It returns the parts to read in the next one.
func (r *round) finish() (readNext []int) {
	members := r.members()
	for _, name := range r.openNames {
		u := r.open[name]
		if u.compiler == nil {
			readNext = append(readNext, members[name]...)
			r.forgetReused(name)
			continue
		}
		set, warnings, err := u.compiler.Result()
		u.problems, u.warnings = append(u.problems, rules.ProblemsOf(err)...), append(u.warnings, warnings...)
		if len(u.problems) == 0 {
			u.set = set
		}
		r.compiled[name] = new(u.unit) // A copy lets the compiler be freed.
	}
	slices.Sort(readNext)
	return readNext
}

// forgetReused takes back a unit of an earlier load, if the name is that of one.
func (r *round) forgetReused(name string) {
	if u := r.compiled[name]; u != nil {
		delete(r.compiled, name)
		r.placeBytes -= u.placeBytes
		r.shared.Release(u.set)
	}
}

// readInOrder reads parts, as many at a time as there are CPUs, and yields the results in order.
func (c *compiler) readInOrder(parts []int) iter.Seq2[int, ReadPart] {
	return func(yield func(int, ReadPart) bool) {
		results := make([]chan ReadPart, len(parts))
		start := func(i int) {
			if i < len(parts) {
				results[i] = make(chan ReadPart, 1)
				go func() { results[i] <- c.Read(&c.parts[parts[i]]) }()
			}
		}
		ahead := runtime.GOMAXPROCS(0)
		for i := range ahead {
			start(i)
		}
		for i, part := range parts {
			result := <-results[i]
			start(i + ahead)
			if !yield(part, result) {
				return
			}
		}
	}
}
