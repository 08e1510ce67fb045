package overrides

import (
	"context"
	"time"
)

// Store keeps the overrides of all replicas that share it, and the history of their changes. Its methods may be called
// by several goroutines.
type Store interface {
	// Commit makes the edits in one step. It returns a result for each edit, and Delta.Epoch. The error may wrap
	// ErrTooMany.
	Commit(ctx context.Context, edits []Edit, limits Limits) (results []Result, epoch uint64, err error)
	// Read returns what was changed since the position, which is that of the last Delta. The first one is zero.
	Read(ctx context.Context, since uint64) (*Delta, error)
	// History returns the last records, the newest first, at most MaxHistory.
	History(ctx context.Context) ([]Record, error)
	// Pause returns the time between two calls of Read. It is 0 if nobody but this process changes the store: then the
	// first Read tells everything.
	Pause() time.Duration
}

// Limits bound what a Store keeps.
type Limits struct {
	Now     time.Time // Overrides that have ended before it are removed, some at a time.
	MaxKept int       // the number of overrides
	// Known is the greatest version that the caller knows. A store that has only smaller ones has lost changes.
	Known uint64
}

// Edit sets or removes one override.
type Edit struct {
	Override
	// Remove removes the override that has the ID. Otherwise it is set.
	Remove bool
	// OnlyAbsent leaves an override with the same ID as it is. It is for overrides that the store has lost. One that was
	// removed after its version Known stays away.
	OnlyAbsent bool
	Known      uint64
	// By is the address of the client, for the history. With OnlyAbsent there is no record.
	By string
}

// Result is what became of an Edit.
type Result struct {
	Before  *Override // the override that was replaced or removed; nil for none
	Version uint64    // of the override now; 0 if it was removed, or left as it was
}

// Delta is a change of a Store.
type Delta struct {
	// Whole says that Set has all overrides of the store, and that those that it does not have are gone.
	Whole bool
	Set   []Versioned
	// Removed are the IDs of overrides that are gone.
	Removed []ID
	// Position is that of the store after the changes. More says that there are more changes behind it.
	Position uint64
	More     bool
	// Count is the number of all overrides in the store, and Sum the sum of their versions modulo SumModulus. Both are
	// those after all changes.
	Count int
	Sum   uint64
	// Epoch tells a store from another one that had its place, and whose overrides are lost. It is 0 for a store that
	// never had any.
	Epoch uint64
}

// Versioned is an override as a store has it. Each change of the store gives a greater version.
type Versioned struct {
	Override
	Version uint64
}

// SumModulus is more than any version. Lua's numbers have all integers below its double.
const SumModulus = 1 << 52

// None returns a store that keeps nothing, because of why: each Commit returns it.
func None(why error) Store { return none{why} }

type none struct{ why error }

func (n none) Commit(context.Context, []Edit, Limits) ([]Result, uint64, error) { return nil, 0, n.why }

func (none) Read(context.Context, uint64) (*Delta, error) { return &Delta{Whole: true}, nil }
func (none) History(context.Context) ([]Record, error)    { return nil, nil }
func (none) Pause() time.Duration                         { return 0 }
