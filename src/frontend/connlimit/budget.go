package connlimit

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Budget bounds the bytes that all connections of the process hold together: requests
// that are read or decided, replies that are not read, streams, and HTTP bodies. When
// it is used up, the connections that hold the most are closed:
//
//	budget 100, accounts 60, 25, 10; the third holds 10 more
//	-> 105 held: the account with 60 is evicted, 45 remain
//
// Create it with NewBudget. A nil Budget has no bound.
type Budget struct {
	max           int64
	held, evicted atomic.Int64

	mu       sync.Mutex
	accounts map[*Account]struct{} // guarded by mu
}

// NewBudget returns a budget of max bytes; 0: no bound.
func NewBudget(max int64) *Budget {
	if max <= 0 {
		max = math.MaxInt64
	}
	return &Budget{max: max, accounts: make(map[*Account]struct{})}
}

// Max returns the bound in bytes.
func (b *Budget) Max() int64 { return b.max }

// Held returns how many bytes all accounts hold now.
func (b *Budget) Held() int64 { return b.held.Load() }

// Evicted returns how many accounts were closed because the budget was used up.
func (b *Budget) Evicted() int64 { return b.evicted.Load() }

// Account is what one connection holds. Its methods may be called from any
// goroutine. A nil Account holds nothing and accepts everything.
type Account struct {
	budget  *Budget
	evict   func(bytes int64)
	held    atomic.Int64 // bytes; below 0 after eviction and Close
	sampled int64        // held when relieve began; guarded by budget.mu
}

// emptied is the value of held after eviction and Close. No Hold makes it positive.
const emptied = math.MinInt64 / 2

// Open returns an account that holds nothing yet. evict closes the connection when it
// holds too much, and is given how much that was. It is called at most once, from any
// Hold on the budget, without locks of this package held, and must not block.
func (b *Budget) Open(evict func(bytes int64)) *Account {
	if b == nil {
		return nil
	}
	a := &Account{budget: b, evict: evict}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accounts[a] = struct{}{}
	return a
}

// Hold adds n bytes, and evicts the largest accounts if the budget is used up. It
// reports false if this account is closed or evicted. Then no Release is needed.
func (a *Account) Hold(n int64) bool {
	switch {
	case a == nil:
		return true
	case a.held.Add(n) < 0:
		return false
	case a.budget.held.Add(n) > a.budget.max:
		a.budget.relieve()
	}
	return a.held.Load() >= 0
}

// Release gives back n of the bytes that Hold added. After eviction or Close it does
// nothing.
func (a *Account) Release(n int64) {
	if a != nil && a.held.Add(-n) >= 0 {
		a.budget.held.Add(-n)
	}
}

// Held returns how many bytes the account holds; 0 after eviction and Close.
func (a *Account) Held() int64 {
	if a == nil {
		return 0
	}
	return max(a.held.Load(), 0)
}

// Close releases all that the account holds. Call it when the connection ends.
func (a *Account) Close() {
	if a != nil {
		a.budget.mu.Lock()
		defer a.budget.mu.Unlock()
		a.empty()
	}
}

// empty closes the account and returns what it held; below 0 if it was closed before.
// The caller holds budget.mu.
func (a *Account) empty() int64 {
	delete(a.budget.accounts, a)
	n := a.held.Swap(emptied)
	a.budget.held.Add(-max(n, 0))
	return n
}

// relieve evicts accounts, the largest first, until an eighth of the budget is free,
// so that the next Hold does not have to search again.
func (b *Budget) relieve() {
	var evictions []func()
	b.mu.Lock()
	if b.held.Load() > b.max { // else another goroutine evicted accounts first
		all := slices.Collect(maps.Keys(b.accounts))
		for _, a := range all {
			a.sampled = a.held.Load()
		}
		slices.SortFunc(all, func(x, y *Account) int { return cmp.Compare(y.sampled, x.sampled) })
		for _, a := range all {
			if a.sampled <= 0 || b.held.Load() <= b.max-b.max/8 {
				break
			}
			if bytes := a.empty(); bytes >= 0 {
				evictions = append(evictions, func() { a.evict(bytes) })
			}
		}
	}
	b.mu.Unlock()
	b.evicted.Add(int64(len(evictions)))
	for _, evict := range evictions {
		evict()
	}
}
