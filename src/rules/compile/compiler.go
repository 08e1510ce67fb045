package compile

import (
	"time"

	"ratelimit/src/rules"

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
	// Counting and OnContention are those of limits whose rules do not have them. A limit that cannot be leased is exact.
	Counting     backend.Counting
	OnContention backend.Contention
	// PeerKey returns the key that another program in the same store has for a limit of an ordered list; nil for a limit
	// that it does not have. If PeerKey is nil, all limits have keys of this service.
	PeerKey func(*rules.Rule) *rules.PeerKey
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

// report has what is wrong with the configurations. Its methods compile and check what needs nothing else.
type report struct {
	problems, warnings rules.Problems
}

// limitCompiler compiles limits.
type limitCompiler struct {
	report
	options         Options
	shared          *Shared
	countBlockedPos map[*rules.Rule]rules.Pos // the positions of count_blocked: true
}

// Compiler compiles configurations one by one.
type Compiler struct {
	limitCompiler
	parts             rules.SetParts
	domainsByName     map[string]*rules.Domain
	replacingRules    []replacingRule
	inheritedSettings []*inheritedSetting
	namesTooLong      bool             // a rule was not added because all names together are too long
	warnedKeys        map[keyPair]bool // the keys in the domain of the last AddConfig of which checkKeyOrder has warned
}

// replacingRule is a rule that replaces the rules whose names it lists.
type replacingRule struct {
	rule          *rules.Rule
	replacedNames []Positioned[string]
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
	hasNoNestedRules bool                // in ordered lists and trees of limits: their rules have no descriptors below
	notify           *rules.Notification // of limits without their own; nil, or without At, for none
}

// inheritance holds the settings and limits that a descriptor inherits from the levels above it.
type inheritance struct {
	chargePathSetting *inheritedSetting // set where `charge: path` holds, and nil for the default, leaf
	allOrNoneSetting  *inheritedSetting // set where `on_reject: none` holds, and nil for the default, each
	// limitsAbove are the limits of the levels from the one with `charge: path`, outermost first. A match is charged to
	// them too.
	limitsAbove []*rules.Rule
}

// inheritedSetting is one `charge: path` or `on_reject: none` in a file. It holds for its descriptor and all levels
// below.
type inheritedSetting struct {
	yamlKey   *inheritableYAMLKey
	pos       rules.Pos
	hasEffect bool // set if the setting changes how some descriptor is charged
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
