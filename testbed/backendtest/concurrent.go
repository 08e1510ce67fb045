package backendtest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

const (
	callers     = 64 // the number of goroutines that call the store at once
	callsOfEach = 16
)

// concurrently calls call from many goroutines at once.
func concurrently(call func(caller, i int)) {
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range callsOfEach {
				call(c, i)
			}
		})
	}
	wg.Wait()
}

// testConcurrent checks that exactly the limit passes when many goroutines charge it at once.
func (suite *Suite) testConcurrent(t *testing.T, open func(*testing.T) backend.Backend) {
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		for _, tt := range []struct {
			name  string
			limit *algorithm.Limit
			keys  int
		}{
			{"one key, refused hits count", countingBlocked(kind, 1000, time.Hour), 1},
			{"one key, refused hits do not count", ignoringBlocked(kind, 1000, time.Hour), 1},
			{"twenty keys, refused hits count", countingBlocked(kind, 40, time.Hour), 20},
			{"twenty keys, refused hits do not count", ignoringBlocked(kind, 40, time.Hour), 20},
		} {
			if suite.supports(tt.limit) && (tt.keys > 1 || !suite.Brief) {
				t.Run(tt.name, func(t *testing.T) { testExact(t, open(t), tt.limit, tt.keys) })
			}
		}
	})
	for i, kind := range suite.Kinds {
		if suite.NoGroups {
			break
		}
		other := suite.Kinds[(i+1)%len(suite.Kinds)]
		t.Run(fmt.Sprintf("atomic groups of %v and %v in opposite orders", kind, other), func(t *testing.T) {
			testOppositeOrders(t, open(t), kind, other)
		})
	}
	t.Run("an ended context does not hang", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		b := backend.Batch{
			Hits:     []backend.Hit{{Key: []byte("k"), Limit: fixedWindow(1, time.Hour), Amount: 1}},
			Verdicts: make([]backend.Verdict, 1), Now: epoch,
		}
		if err := open(t).Take(ctx, &b); err != nil {
			t.Errorf("Take: %v, which is for misuse only", err)
		}
	})
}

func testExact(t *testing.T, store backend.Backend, limit *algorithm.Limit, keys int) {
	admitted := make([]atomic.Uint64, keys)
	concurrently(func(c, i int) {
		k := (c + i) % keys
		if v := send(t, store, epoch, backend.Hit{
			Key: fmt.Appendf(nil, "k%d", k), Limit: limit,
			Amount: 1,
		})[0]; !v.Over {
			admitted[k].Add(1)
		}
	})
	for k := range admitted {
		if got := admitted[k].Load(); got != limit.Max {
			t.Errorf("key %d: %d admitted, want %d", k, got, limit.Max)
		}
	}
}

func testOppositeOrders(t *testing.T, store backend.Backend, kind, other algorithm.Kind) {
	small := backend.Hit{Key: []byte("a"), Limit: countingBlocked(kind, 500, time.Hour), Amount: 1, Atomic: true}
	large := backend.Hit{Key: []byte("b"), Limit: countingBlocked(other, 100_000, time.Hour), Amount: 1, Atomic: true}
	concurrently(func(c, _ int) {
		if c%2 == 0 {
			send(t, store, epoch, small, large)
		} else {
			send(t, store, epoch, large, small)
		}
	})
	for _, h := range []backend.Hit{small, large} {
		h.Op, h.Atomic = look, false
		if v := send(t, store, epoch, h)[0]; v.Before != small.Limit.Max {
			t.Errorf("%s is %d, want %d: what one refuses the other must not count", h.Key, v.Before, small.Limit.Max)
		}
	}
}
