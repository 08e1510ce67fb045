package backend

import (
	"context"
	"errors"
)

// Editor changes counters for operators. Every store implements it, and so does every layer in front of a store that is
// a Backend. An Editor is slower than a Backend. It may send commands that Take never sends.
type Editor interface {
	// SetCounts makes the counter of each hit hold exactly Amount units, as if a new counter had been charged with them
	// at b.Now. An Amount of 0 forgets the counter. Only Key, TagLength, SharesKey, StoresRemaining, Limit and Amount
	// of the hits have a meaning; Op, groups and b.Verdicts have none. No two hits may be on the same counter.
	//
	// A counter may hold less than Amount if its limit allows no more: a GCRA without CountBlocked never exceeds its
	// capacity. A hit that Take decides at the same time is counted before or after the change, or between the reset
	// and the new amount.
	//
	// After an error it is unknown which counters were changed. To set them again is safe.
	SetCounts(ctx context.Context, b *Batch) error
	// ResetPrefixes forgets the counters whose keys begin with one of prefixes. If dryRun is set, it only finds them.
	// It calls found, one call at a time, with the names of the counters as the store has them: the name of a fixed
	// window may have the start of the window, and expired windows that the store still has may be found. found must
	// not keep the names. ResetPrefixes may find a counter twice, and may miss counters that are created meanwhile.
	//
	// The error is ErrNoNames if the store does not know the names of its counters.
	ResetPrefixes(ctx context.Context, prefixes []KeyPrefix, dryRun bool, found func(names [][]byte)) error
}

// KeyPrefix is the start of the keys of some counters.
type KeyPrefix struct {
	// Text is the start of Hit.Key. It is never empty.
	Text []byte
	// TagLength is the Hit.TagLength of the counters, or 0 if Text ends within their tag. It is at most len(Text).
	TagLength int
}

// ErrNoNames is the error of a store that does not know the names of its counters.
var ErrNoNames = errors.New("the store does not keep the names of its counters")

// ErrNotEditable is the error of a store whose counters nothing but hits can change.
var ErrNotEditable = errors.New("the store cannot change counters")

// EditorOf returns b as an Editor. If b is none, the methods of the result return ErrNotEditable.
func EditorOf(b Backend) Editor {
	if e, ok := b.(Editor); ok {
		return e
	}
	return notEditable{}
}

type notEditable struct{}

func (notEditable) SetCounts(context.Context, *Batch) error { return ErrNotEditable }

func (notEditable) ResetPrefixes(context.Context, []KeyPrefix, bool, func([][]byte)) error {
	return ErrNotEditable
}
