package rules

import (
	"slices"
	"strings"

	"ratelimit/src/algorithm"
)

// Store is what the store of the counters can do. The zero value can do all there
// is.
type Store struct {
	// Name is what the store is called in messages.
	Name string
	// Kinds are the algorithms that it counts by. Empty: all.
	Kinds []algorithm.Kind
	// CountsBlocked: it cannot but count what it refuses.
	CountsBlocked bool
	// NoGroups: it cannot charge several limits all or none.
	NoGroups bool
	// Others are the stores that can, two at least.
	Others []string
}

// other is how to mend what s cannot do.
func (s *Store) other() string { return "another store: " + OneOf(s.Others) }

// storable looks whether the store can count by l.
func (c *Compiler) storable(l *algorithm.Limit, cfg *RateLimitConfig) {
	s := &c.opt.Store
	if len(s.Kinds) > 0 && !slices.Contains(s.Kinds, l.Kind) {
		at := cfg.Pos
		if cfg.Algorithm != nil {
			at = cfg.Algorithm.Pos
		}
		var kinds []string
		for _, k := range s.Kinds {
			kinds = append(kinds, k.String())
		}
		c.problems.Add(at, "use "+strings.Join(kinds, " or ")+", or "+s.other(), "%s cannot count by %v", s.Name, l.Kind)
		return
	}
	if !s.CountsBlocked || l.CountBlocked {
		return
	}
	if v := cfg.CountBlocked; v != nil {
		c.problems.Add(v.Pos, "write `count_blocked: true`, or use "+s.other(), "%s cannot but count what it refuses", s.Name)
		return
	}
	c.problems.Add(cfg.Pos, "add `count_blocked: true`, or use "+s.other(),
		"%s cannot but count what it refuses, and %v does not unless it is told to", s.Name, l.Kind)
}

// groupable looks whether the store knows `on_reject: none`.
func (c *Compiler) groupable(at Pos) {
	if s := &c.opt.Store; s.NoGroups {
		c.problems.Add(at, "remove it, or use "+s.other(), "%s cannot charge several limits all or none", s.Name)
	}
}
