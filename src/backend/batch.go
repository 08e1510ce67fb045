package backend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ratelimit/src/algorithm"
)

// Batch holds the hits of one request, or of several independent requests. It goes to the store in one call.
type Batch struct {
	Hits []Hit
	// Verdicts has the length and order of Hits; Take fills it.
	Verdicts []Verdict
	// Now is the instant of the batch in virtual time. Zero means the store's clock.
	Now time.Time
	// Ahead is how far ahead of its clock a store decides a batch that is not in virtual time. All its limits are fixed
	// windows, which follow the clock of this process: the counter is that of the window at that instant, and lives until
	// its end.
	Ahead time.Duration
	// DecidedAt is the time of this process' clock, or Now, in nanoseconds since the Unix epoch, by which a store
	// decided the batch. It is 0 if no store set it. In Redis, algorithms other than fixed_window follow the clock of
	// Redis instead.
	DecidedAt int64
}

// UnixNano returns Now, or the time of this process' clock and Ahead if Now is zero, in nanoseconds since the Unix
// epoch.
func (b *Batch) UnixNano() int64 {
	if b.Now.IsZero() {
		return time.Now().Add(b.Ahead).UnixNano()
	}
	return b.Now.UnixNano()
}

// Validate returns an error if the caller misuses b. Clients cannot cause one. Every store calls it first.
func (b *Batch) Validate() error {
	if len(b.Verdicts) != len(b.Hits) {
		return fmt.Errorf("backend: %d verdicts for %d hits", len(b.Verdicts), len(b.Hits))
	}
	if !b.Now.IsZero() && !algorithm.IsValidInstant(b.Now) {
		return fmt.Errorf("backend: the instant %v is not between the years 1970 and 2150", b.Now)
	}
	for i := range b.Hits {
		h := &b.Hits[i]
		switch {
		case h.Limit == nil:
			return errors.New("backend: a hit without a limit")
		case b.Ahead != 0 && h.Limit.Kind != algorithm.FixedWindow:
			return fmt.Errorf("backend: a %v is asked %v ahead", h.Limit.Kind, b.Ahead)
		case h.TagLength < 0 || h.TagLength > len(h.Key):
			return fmt.Errorf("backend: a tag of %d bytes for a key of %d", h.TagLength, len(h.Key))
		case h.Amount > algorithm.MaxAmount:
			return fmt.Errorf("backend: an amount of %d is above 2^48", h.Amount)
		case !h.Op.Valid():
			return fmt.Errorf("backend: %v is not known", h.Op)
		case !Fallbacks.has(h.Fallback):
			return fmt.Errorf("backend: %v is not known", h.Fallback)
		case !Countings.has(h.Counting) || !Contentions.has(h.OnContention):
			return fmt.Errorf("backend: %v or %v is not known", h.Counting, h.OnContention)
		case h.Window != 0 && (h.Op != algorithm.Refund || h.StoresRemaining || !h.Limit.HasWindowEnd()):
			return fmt.Errorf("backend: a %v on a %v names the window up to %d", h.Op, h.Limit.Kind, h.Window)
		case !h.Limit.Kind.Valid():
			return fmt.Errorf("backend: %v is not known", h.Limit.Kind)
		case h.Limit.Period <= 0:
			return errors.New("backend: a limit without a period")
		case h.Limit.Hold == 0 && h.HoldID != algorithm.HoldID{}:
			return errors.New("backend: a hold on a limit without holds")
		}
	}
	return nil
}

// GroupEnd returns the index behind the last hit of the group that starts at hit i.
func (b *Batch) GroupEnd(i int) int {
	end := i + 1
	for end < len(b.Hits) && b.Hits[end].GroupID == b.Hits[i].GroupID {
		end++
	}
	return end
}

// TakeHit sends one hit to store. The error is that of the verdict, if store did not answer, or of misuse.
func TakeHit(ctx context.Context, store Backend, h Hit) (Verdict, error) {
	b := Batch{Hits: []Hit{h}, Verdicts: make([]Verdict, 1)}
	if err := store.Take(ctx, &b); err != nil {
		return Verdict{}, err
	}
	return b.Verdicts[0], b.Verdicts[0].Err
}

// FirstErr returns the first error in the verdicts.
func (b *Batch) FirstErr() error {
	for i := range b.Verdicts {
		if err := b.Verdicts[i].Err; err != nil {
			return err
		}
	}
	return nil
}
