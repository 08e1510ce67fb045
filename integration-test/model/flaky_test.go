package model

import (
	"context"
	"errors"
	"slices"
	"sync"

	"ratelimit/src/backend"
	"ratelimit/src/backend/fallback"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/overlimit"
	"ratelimit/src/backend/split"
)

// flaky is a memory store that fails as told, with no network in between.
type flaky struct {
	front backend.Backend
	cache bool
	back  *fallback.Store // in front of the store; nil: none

	mu      sync.Mutex // guards what follows
	store   backend.Backend
	wrong   Fault
	stalled []backend.Batch
}

// newFlaky is a lab of memory; short windows are apart, behind a cache, if split
// says so. Spoil, if set, makes something else of the store.
func newFlaky(apart bool, spoil func(backend.Backend) backend.Backend) (*flaky, error) {
	f := &flaky{wrong: None, cache: apart}
	if err := f.empty(); err != nil {
		return nil, err
	}
	f.front = f
	if spoil != nil {
		f.front = spoil(f)
	}
	if apart {
		perSecond, err := memory.New(memory.Config{MaxBytes: memory.MinBytes})
		if err != nil {
			return nil, err
		}
		f.front = overlimit.New(split.New(perSecond, f.front), 0)
	}
	return f, nil
}

// newFallback is a lab of memory behind a fallback. Spoil is as for newFlaky.
func newFallback(spoil func(backend.Backend) backend.Backend) (*flaky, error) {
	f, err := newFlaky(false, spoil)
	if err != nil {
		return nil, err
	}
	f.back, err = fallback.New(f.front, fallback.Config{MaxBytes: memory.MinBytes})
	f.front = f.back
	return f, err
}

func (f *flaky) empty() error {
	store, err := memory.New(memory.Config{MaxBytes: memory.MinBytes})
	f.store = store
	return err
}

func (f *flaky) backend() backend.Backend { return f.front }
func (f *flaky) traits() Traits {
	return Traits{Cached: f.cache, Independent: f.cache, Fallback: f.back != nil, OneWindow: true}
}

func (f *flaky) quiet() error { return nil }
func (f *flaky) check() error { return nil }
func (f *flaky) close() error { return nil }

func (f *flaky) fault(to Fault) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if to == Wipe {
		return f.empty()
	}
	f.wrong = to
	for i := range f.stalled {
		if err := f.store.Take(context.Background(), &f.stalled[i]); err != nil {
			return err
		}
	}
	f.stalled = nil
	return nil
}

func (f *flaky) is(wrong Fault) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wrong == wrong
}

var errFault = errors.New("as told")

// Take is limiter.Backend.
func (f *flaky) Take(ctx context.Context, b *backend.Batch) error {
	f.mu.Lock()
	store, wrong := f.store, f.wrong
	if wrong == Stall {
		f.stalled = append(f.stalled, copied(b))
	}
	f.mu.Unlock()
	switch wrong {
	case Lost:
		lost := copied(b)
		if err := store.Take(ctx, &lost); err != nil {
			return err
		}
	case Stall, Down:
	default:
		return store.Take(ctx, b)
	}
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: errFault}
	}
	return nil
}

// copied is b with memory of its own.
func copied(b *backend.Batch) backend.Batch {
	out := backend.Batch{Hits: slices.Clone(b.Hits), Verdicts: make([]backend.Verdict, len(b.Verdicts)), Now: b.Now}
	for i := range out.Hits {
		out.Hits[i].Key = slices.Clone(out.Hits[i].Key)
		limit := *out.Hits[i].Limit
		out.Hits[i].Limit = &limit
	}
	return out
}
