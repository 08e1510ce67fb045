package algorithm

import (
	"errors"
	"fmt"
	"time"
)

// Kind is the arithmetic that a limit follows.
type Kind uint8

const (
	// FixedWindow counts hits between two edges of a window that is aligned to
	// the Unix epoch: minutes begin at :00, weeks on Thursdays (UTC). At most
	// 2 x Max pass in any stretch as long as the period: Max just before an
	// edge and Max just after it.
	FixedWindow Kind = iota
)

// String is the name a rule file uses.
func (k Kind) String() string {
	if k == FixedWindow {
		return "fixed_window"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// MaxPeriod is the longest window there is: 100 years of 365 days. It keeps
// every instant the arithmetic computes inside the range of int64 nanoseconds.
const MaxPeriod = 100 * 365 * 24 * time.Hour

// Limit is the arithmetic of one compiled rule. It is immutable once in use
// and shared by all hits of the rule.
type Limit struct {
	Kind Kind
	// Max is how much passes in one Period. 0 lets nothing pass.
	Max uint64
	// Period is the window's length, in (0, MaxPeriod]. Whole seconds for
	// FixedWindow, whose edges are told to callers in whole seconds.
	Period time.Duration
	// Burst is what a bucket lets pass at once beyond the first unit. No
	// FixedWindow has one: 0.
	Burst uint64
	// MinInterval is the shortest distance between two hits. No FixedWindow
	// knows when its hits were: 0.
	MinInterval time.Duration
	// CountBlocked says that refused hits count as well. It is true for the
	// fixed windows of Envoy's rule files.
	CountBlocked bool
}

// Validate says what is wrong with l, in words for whoever wrote the rule.
func (l *Limit) Validate() error {
	switch {
	case l.Kind != FixedWindow:
		return fmt.Errorf("algorithm: %v is not known", l.Kind)
	case l.Period <= 0:
		return errors.New("algorithm: the window must be longer than 0s")
	case l.Period > MaxPeriod:
		return errors.New("algorithm: the window is longer than 100 years")
	case l.Period%time.Second != 0:
		return fmt.Errorf("algorithm: %v needs a window of whole seconds, got %v", l.Kind, l.Period)
	case l.Burst != 0:
		return fmt.Errorf("algorithm: %v has no burst", l.Kind)
	case l.MinInterval != 0:
		return fmt.Errorf("algorithm: %v has no minimum interval", l.Kind)
	}
	return nil
}
