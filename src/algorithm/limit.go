package algorithm

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
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
	// FirstHitWindow counts hits in a window that begins with the first of them.
	// At most 2 x Max pass in any stretch as long as the period.
	FirstHitWindow
	// SlidingWindow knows when each hit was. At most Max pass in any stretch as
	// long as the period, of which either the first or the last instant counts.
	SlidingWindow
	// SlidingWindowCounter estimates that from the counts of two fixed windows. At
	// most 2 x Max - 1 pass in any stretch as long as the period.
	SlidingWindowCounter
	// GCRA, the generic cell rate algorithm, is a bucket of Burst+1 that fills by
	// one unit in each emission interval, Period / Max cut to whole nanoseconds. At
	// most Burst + 1 + Max pass in any stretch as long as the period, or a few more
	// above 31,622 a second, where the cut tells: 99,999 are 100,000.
	GCRA

	kinds
)

var kindNames = [kinds]string{"fixed_window", "first_hit_window", "sliding_window", "sliding_window_counter", "gcra"}

// String is the name a rule file uses.
func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// ParseKind is the Kind that a rule file calls so.
func ParseKind(name string) (k Kind, ok bool) {
	for k, n := range kindNames {
		if n == name {
			return Kind(k), true
		}
	}
	return 0, false
}

// Kinds are the names of all there are.
func Kinds() []string { return slices.Clone(kindNames[:]) }

// Valid reports whether k is one of the constants.
func (k Kind) Valid() bool { return k < kinds }

// tellsRest reports whether the Remaining of a refused hit is what is left, not 0.
func (k Kind) tellsRest() bool { return k == FirstHitWindow || k == SlidingWindow || k == GCRA }

// MaxPeriod is the longest window there is: 100 years of 365 days. It keeps
// every instant the arithmetic computes inside the range of int64 nanoseconds.
const MaxPeriod = 100 * 365 * 24 * time.Hour

// MaxLogged is the largest Max of a SlidingWindow, which keeps as many hits for
// each key.
const MaxLogged = 1_000_000

// Limit is the arithmetic of one compiled rule. It is immutable once in use
// and shared by all hits of the rule.
type Limit struct {
	Kind Kind
	// Max is how much passes in one Period. 0 lets nothing pass.
	Max uint64
	// Period is the window's length, in (0, MaxPeriod]. Whole seconds for
	// FixedWindow, whose edges are told to callers in whole seconds; whole
	// microseconds for all others, as Redis tells the time.
	Period time.Duration
	// Burst is what a GCRA lets pass at once beyond the first unit. Others have
	// none: 0.
	Burst uint64
	// MinInterval is the shortest distance to the last recorded hit, in whole
	// microseconds up to MaxPeriod; 0: none. Only SlidingWindow and GCRA know
	// when that was.
	MinInterval time.Duration
	// CountBlocked says that refused hits count as well. It is true for the
	// fixed windows of Envoy's rule files.
	CountBlocked bool
}

// Capacity is the most that can pass at once.
func (l *Limit) Capacity() uint64 {
	if l.Kind == GCRA && l.Max > 0 {
		return l.Burst + 1
	}
	return l.Max
}

// Validate says what is wrong with l, in words for whoever wrote the rule.
func (l *Limit) Validate() error {
	switch {
	case l.Kind >= kinds:
		return fmt.Errorf("algorithm: %v is not known", l.Kind)
	case l.Period <= 0:
		return errors.New("algorithm: the window must be longer than 0s")
	case l.Period > MaxPeriod:
		return errors.New("algorithm: the window is longer than 100 years")
	case l.Kind == FixedWindow && l.Period%time.Second != 0:
		return fmt.Errorf("algorithm: %v needs a window of whole seconds, got %v", l.Kind, l.Period)
	case l.Period%time.Microsecond != 0:
		return fmt.Errorf("algorithm: %v needs a window of whole microseconds, got %v", l.Kind, l.Period)
	case l.Burst != 0 && l.Kind != GCRA:
		return fmt.Errorf("algorithm: %v has no burst", l.Kind)
	case l.MinInterval != 0 && l.Kind != SlidingWindow && l.Kind != GCRA:
		return fmt.Errorf("algorithm: %v has no minimum interval", l.Kind)
	case l.MinInterval < 0 || l.MinInterval > MaxPeriod:
		return errors.New("algorithm: the minimum interval must be between 0s and 100 years")
	case l.MinInterval%time.Microsecond != 0:
		return fmt.Errorf("algorithm: the minimum interval must be whole microseconds, got %v", l.MinInterval)
	case l.Kind == SlidingWindow && l.Max > MaxLogged:
		return fmt.Errorf("algorithm: %v remembers each hit, so its limit is at most %d; %v has no such bound", l.Kind, MaxLogged, SlidingWindowCounter)
	}
	return l.validateBucket()
}

func (l *Limit) validateBucket() error {
	if l.Kind != GCRA || l.Max == 0 {
		return nil
	}
	emission := uint64(l.Period) / l.Max
	if emission == 0 {
		return fmt.Errorf("algorithm: %v lets at most one unit pass in a nanosecond, which %d in %v exceed", l.Kind, l.Max, l.Period)
	}
	if hi, lo := bits.Mul64(emission, l.Burst+1); l.Burst == math.MaxUint64 || hi > 0 || lo > uint64(MaxPeriod) {
		return errors.New("algorithm: the burst takes longer than 100 years to fill")
	}
	return nil
}
