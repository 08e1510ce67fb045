// Package algorithm is the arithmetic of limits, without a clock, lock, goroutine or network.
// Each [Kind] has a Take function, which applies an operation to the state of one counter and
// returns the new state and an [Outcome]. A limit with a Hold has a [HeldState] in front of it.
//
// In all Take functions at is the instant in nanoseconds since the Unix epoch, and amount is
// at most [MaxAmount]. The zero value of a state is a counter without hits.
//
// The caller must store the returned state even if Charged is false. If a clock was set back, a state is too far ahead.
// Then the next operation corrects it, also a look and a charge that is refused, so that the wait starts at once.
package algorithm

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Kind is the algorithm of a limit.
type Kind uint8

const (
	// FixedWindow counts hits in windows aligned to the Unix epoch: minutes start at :00, weeks on Thursdays (UTC). At
	// most 2 x Max units pass within any one period: Max just before an edge and Max just after it. With a Calendar,
	// windows begin on borders of the calendar instead.
	FixedWindow Kind = iota
	// FirstHitWindow counts hits in a window that starts with the first hit. At most 2 x Max units pass within any one
	// period.
	FirstHitWindow
	// SlidingWindow stores the time of each hit. At most Max units pass within any one
	// period, which excludes its start: a hit one period old does not count.
	SlidingWindow
	// SlidingWindowCounter estimates the count of a sliding window from the counts of two
	// fixed windows. At most 2 x Max - 1 units pass within any one period.
	SlidingWindowCounter
	// GCRA, the generic cell rate algorithm, is a bucket of Burst+1 units that gets one unit
	// back per EmissionInterval. At most Burst + 1 + Max units pass within any one period. Above
	// 31,622 a second rounding lets a few more pass: 100,000 for a Max of 99,999.
	GCRA
	// Concurrency counts only open holds: at most Max units are held at the same time. It has no window; its Period equals
	// its Hold.
	Concurrency

	numKinds
)

var kindNames = [numKinds]string{
	"fixed_window", "first_hit_window", "sliding_window", "sliding_window_counter", "gcra",
	"concurrency",
}

// String returns the name that rule files use.
func (k Kind) String() string {
	if k < numKinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// ParseKind returns the kind with that name.
func ParseKind(name string) (k Kind, ok bool) {
	i := slices.Index(kindNames[:], name)
	return Kind(max(i, 0)), i >= 0
}

// KindNames returns the names of all kinds.
func KindNames() []string { return slices.Clone(kindNames[:]) }

// Valid reports whether k is one of the constants.
func (k Kind) Valid() bool { return k < numKinds }

// MaxPeriod is the longest window: 100 years of 365 days.
const MaxPeriod = 100 * 365 * 24 * time.Hour

// MaxCapacity is the largest Max, and the largest Burst + 1, of the limit of a rule: 2^48. The sum of a count and an
// amount stays below MaxScriptCount, and JavaScript's numbers are exact.
const MaxCapacity = 1 << 48

// MaxLoggedHits is the largest Max of a SlidingWindow, which stores that many hits per key.
const MaxLoggedHits = 1_000_000

// Limit is the limit of one rule. It must not change while hits use it.
type Limit struct {
	Kind Kind
	// CountBlocked says that refused hits count, too, as in envoyproxy/ratelimit.
	CountBlocked bool
	// KeepsDebt says that a GCRA keeps debt beyond its BurstTolerance, which was charged with a larger Burst: a hit waits
	// for all of it. Otherwise a counter forgets that debt, and so heals after a clock that was far ahead is set back.
	// Rules never keep it.
	KeepsDebt bool
	// ReleaseUnsettled says that a hold that expires is given back. Otherwise it is charged, unless the limit is a
	// Concurrency.
	ReleaseUnsettled bool
	// Max is how many units pass in one Period. With 0 nothing passes, not even a hit of 0 units.
	Max uint64
	// Period is the window's length, in (0, MaxPeriod]: whole seconds for FixedWindow, whole microseconds, the precision
	// of Redis' clock, for the others. Beside a Calendar it is the nominal length, such as 30 days for a month.
	Period time.Duration
	// Calendar divides time into the windows of a FixedWindow, instead of Period. Nil stands for windows of equal length.
	Calendar *Calendar
	// Burst is how many units a GCRA lets pass at once beyond the first. Other kinds have 0.
	Burst uint64
	// Emission, if set, is the EmissionInterval of a GCRA instead of Period / Max. So a caller can change the rate of a
	// counter, which Window does not tell from others with this Period. Rules have none.
	Emission time.Duration
	// MinInterval is the shortest time since the last recorded hit, in whole microseconds up
	// to MaxPeriod, or 0. Only SlidingWindow and GCRA have one.
	MinInterval time.Duration
	// Hold is for how long a hold stays open, up to MaxHold in whole microseconds. With 0 hits cannot be held. See
	// HeldState.
	Hold time.Duration
}

// Window identifies the windows of a limit. Limits with equal windows share the counters of equal keys. It is
// comparable.
type Window struct {
	Kind       Kind
	Period     time.Duration
	CalendarID uint64
	IsHeld     bool // true if the limit has a Hold.
}

// Window returns what identifies the windows of l.
func (l *Limit) Window() Window {
	if l.Kind == Concurrency {
		return Window{Kind: Concurrency, IsHeld: true}
	}
	return Window{l.Kind, l.Period, l.Calendar.ID(), l.Hold > 0}
}

// WindowBounds returns the start and the end of the window of l that contains the instant at, in nanoseconds since the
// Unix epoch: start <= at < end. It is for a FixedWindow.
func (l *Limit) WindowBounds(at int64) (start, end int64) {
	if l.Calendar != nil {
		return l.Calendar.Bounds(at)
	}
	return WindowBounds(at, l.Period)
}

// WindowStart returns the start of the window of l that ends at end. It is for a FixedWindow.
func (l *Limit) WindowStart(end int64) int64 {
	if l.Calendar != nil {
		start, _ := l.Calendar.Bounds(end - 1)
		return start
	}
	return end - int64(l.Period)
}

// HasWindowEnd reports whether outcomes of l have a WindowEnd. Limits with holds have none, since a hold that is open
// counts in each window.
func (l *Limit) HasWindowEnd() bool {
	return l.Hold == 0 && (l.Kind == FixedWindow || l.Kind == FirstHitWindow || l.Kind == SlidingWindowCounter)
}

// HasExactRate reports whether a GCRA refills as fast as Max says, but for at most 0.1 %.
func (l *Limit) HasExactRate() bool {
	below, _ := l.NearestExactRates()
	return below == l.Max
}

// Capacity returns the largest amount that can pass at once.
func (l *Limit) Capacity() uint64 {
	if l.Kind == GCRA && l.Max > 0 {
		return l.Burst + 1
	}
	return l.Max
}

// CanPass reports whether a hit of amount passes if the counter is empty. With a Max of 0 no hit does.
func (l *Limit) CanPass(amount uint64) bool { return max(amount, 1) <= l.Capacity() }

// Validate returns an error that tells the author of the rule what is wrong with l.
func (l *Limit) Validate() error {
	switch {
	case !l.Kind.Valid():
		return fmt.Errorf("algorithm: %v is not known", l.Kind)
	case l.Period <= 0:
		return errors.New("algorithm: the window must be longer than 0s")
	case l.Period > MaxPeriod:
		return errors.New("algorithm: the window is longer than 100 years")
	case l.Kind == FixedWindow && l.Period%time.Second != 0:
		return fmt.Errorf("algorithm: %v needs a window of whole seconds, got %v", l.Kind, l.Period)
	case l.Period%time.Microsecond != 0:
		return fmt.Errorf("algorithm: %v needs a window of whole microseconds, got %v", l.Kind, l.Period)
	case l.Calendar != nil && l.Kind != FixedWindow:
		return fmt.Errorf("algorithm: %v has no calendar", l.Kind)
	case l.Hold < 0 || l.Hold > MaxHold || l.Hold%time.Microsecond != 0:
		return fmt.Errorf("algorithm: a hold must be whole microseconds between 0s and %v, got %v", MaxHold, l.Hold)
	case l.Kind == Concurrency && l.Period != l.Hold:
		return fmt.Errorf("algorithm: %v needs a hold", l.Kind)
	case l.Kind == Concurrency && l.Max > MaxOpenHolds:
		return fmt.Errorf("algorithm: %v allows at most %d holds at a time, got %d", l.Kind, MaxOpenHolds, l.Max)
	case l.Hold > 0 && l.CountBlocked:
		return errors.New("algorithm: a limit with holds cannot count refused hits")
	case l.Hold > 0 && l.MinInterval != 0:
		return errors.New("algorithm: a limit with holds has no minimum interval")
	case l.ReleaseUnsettled && l.Hold == 0:
		return errors.New("algorithm: without holds there is nothing to release")
	case l.Burst != 0 && l.Kind != GCRA:
		return fmt.Errorf("algorithm: %v has no burst", l.Kind)
	case l.MinInterval != 0 && l.Kind != SlidingWindow && l.Kind != GCRA:
		return fmt.Errorf("algorithm: %v has no minimum interval", l.Kind)
	case l.MinInterval < 0 || l.MinInterval > MaxPeriod:
		return errors.New("algorithm: the minimum interval must be between 0s and 100 years")
	case l.MinInterval%time.Microsecond != 0:
		return fmt.Errorf("algorithm: the minimum interval must be whole microseconds, got %v", l.MinInterval)
	case l.Kind == SlidingWindow && l.Max > MaxLoggedHits:
		return fmt.Errorf("algorithm: %v remembers each hit, so its limit is at most %d; %v has no such bound", l.Kind,
			MaxLoggedHits, SlidingWindowCounter)
	case l.Emission < 0 || l.Emission > 0 && (l.Kind != GCRA || l.Max == 0):
		return fmt.Errorf("algorithm: %v of %d has no emission interval of %v", l.Kind, l.Max, l.Emission)
	case l.Kind == GCRA && l.Max > uint64(l.Period):
		return fmt.Errorf("algorithm: %v lets at most one unit pass in a nanosecond, which %d in %v exceed", l.Kind, l.Max,
			l.Period)
	case l.Kind == GCRA && l.Max > 0 && !l.HasExactRate():
		below, above := l.NearestExactRates()
		return fmt.Errorf("algorithm: %v counts in whole nanoseconds, which cannot be %d in %v; the nearest rates are %d "+
			"and %d", l.Kind, l.Max, l.Period, below, above)
	case l.Kind == GCRA && l.Max > 0 && (l.Burst == math.MaxUint64 || l.RefillTime(l.Burst+1) > int64(MaxPeriod)):
		return errors.New("algorithm: the burst takes longer than 100 years to fill")
	}
	return nil
}
