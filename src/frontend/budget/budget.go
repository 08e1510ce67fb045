// Package budget bounds the bytes that the process holds for its callers: requests that
// are read or decided, replies that a caller has not read, streams, and HTTP bodies.
//
// Each connection has an Account. When the accounts together hold more than the
// budget allows, the connections that hold the most are closed, so a caller that
// leaves replies unread does not affect others:
//
//	budget 100, accounts 60, 25, 10; the third adds 10
//	-> 105 held: the account with 60 is evicted, 45 remain
package budget

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Budget is a number of bytes that all connections of the process share. Create
// it with New. A nil Budget has no bound.
type Budget struct {
	max     int64
	held    atomic.Int64
	evicted atomic.Int64

	mu       sync.Mutex
	accounts map[*Account]struct{} // guarded by mu
}

// New returns a budget of max bytes; 0: no bound.
func New(max int64) *Budget {
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
	budget *Budget
	evict  func(bytes int64)
	held   atomic.Int64 // bytes; below 0 after eviction and Close
}

// closed is the value of held after eviction and Close. No Add makes it positive.
const closed = math.MinInt64 / 2

// Open returns an account that holds nothing yet. evict closes the connection when it
// holds too much, and is given how much that was. It is called at most once, from any
// Add on the budget, without locks of this package held, and must not block.
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

// Add holds n more bytes, and evicts the largest accounts if the budget is used up.
// It reports false if this account is closed or evicted. Then no Release is needed.
func (a *Account) Add(n int64) bool {
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

// Release gives back n of the bytes that Add took. After eviction or Close it does
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
	if a == nil {
		return
	}
	a.budget.mu.Lock()
	delete(a.budget.accounts, a)
	a.budget.mu.Unlock()
	a.empty()
}

// empty closes the account and returns what it held; false if it was closed before.
func (a *Account) empty() (bytes int64, ok bool) {
	for {
		n := a.held.Load()
		if n < 0 {
			return 0, false
		}
		if a.held.CompareAndSwap(n, closed) {
			a.budget.held.Add(-n)
			return n, true
		}
	}
}

// relieve evicts accounts, the largest first, until an eighth of the budget is free,
// so that the next Add does not have to search again.
func (b *Budget) relieve() {
	type holding struct {
		*Account
		bytes int64
	}
	b.mu.Lock()
	var all, evicted []holding
	if b.held.Load() > b.max { // else another goroutine evicted accounts first
		for a := range b.accounts {
			all = append(all, holding{a, a.held.Load()})
		}
	}
	slices.SortFunc(all, func(x, y holding) int { return cmp.Compare(y.bytes, x.bytes) })
	for _, h := range all {
		if h.bytes <= 0 || b.held.Load() <= b.max-b.max/8 {
			break
		}
		if bytes, ok := h.empty(); ok {
			delete(b.accounts, h.Account)
			evicted = append(evicted, holding{h.Account, bytes})
		}
	}
	b.mu.Unlock()
	b.evicted.Add(int64(len(evicted)))
	for _, h := range evicted {
		h.evict(h.bytes)
	}
}
