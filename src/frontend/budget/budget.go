// Package budget bounds the bytes that the process holds for its callers:
// requests that are read or decided, replies that a caller has not read,
// streams, and HTTP bodies.
//
// Each connection has an Account. When the accounts together hold more than the
// budget allows, the connections that hold the most are closed, so a caller that
// leaves replies unread pays for it and its neighbours do not:
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
	evict  func()
	// held is the number of bytes, or negative after eviction and Close.
	held atomic.Int64
}

// closedAccount is the value of held after eviction and Close. It is so low that no
// Add makes it positive.
const closedAccount = math.MinInt64 / 2

// Open returns an account that holds nothing yet. evict closes the connection when
// it holds too much. It is called at most once, on the goroutine of whichever
// Add used up the budget, without locks held, so it must not block.
func (b *Budget) Open(evict func()) *Account {
	if b == nil {
		return nil
	}
	a := &Account{budget: b, evict: evict}
	b.mu.Lock()
	b.accounts[a] = struct{}{}
	b.mu.Unlock()
	return a
}

// Add holds n more bytes, and evicts the largest accounts if the budget is used up.
// It reports false if this account is closed or was evicted: the caller should drop
// what it holds and need not call Release.
func (a *Account) Add(n int64) bool {
	if a == nil {
		return true
	}
	if a.held.Add(n) < 0 {
		return false
	}
	if a.budget.held.Add(n) <= a.budget.max {
		return true
	}
	a.budget.relieve()
	return a.held.Load() >= 0
}

// Release gives back n of the bytes that Add took. After eviction or Close it does
// nothing.
func (a *Account) Release(n int64) {
	if a == nil {
		return
	}
	if a.held.Add(-n) >= 0 {
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

// empty closes the account and reports false if it was closed before.
func (a *Account) empty() bool {
	for {
		n := a.held.Load()
		if n < 0 {
			return false
		}
		if a.held.CompareAndSwap(n, closedAccount) {
			a.budget.held.Add(-n)
			return true
		}
	}
}

// relieve evicts accounts, the largest first, until an eighth of the budget is free,
// so that the next Add does not have to search again.
func (b *Budget) relieve() {
	b.mu.Lock()
	if b.held.Load() <= b.max { // another goroutine was here first
		b.mu.Unlock()
		return
	}
	type holding struct {
		account *Account
		bytes   int64
	}
	all := make([]holding, 0, len(b.accounts))
	for a := range b.accounts {
		if n := a.held.Load(); n > 0 {
			all = append(all, holding{a, n})
		}
	}
	slices.SortFunc(all, func(x, y holding) int { return cmp.Compare(y.bytes, x.bytes) })
	var victims []*Account
	for _, h := range all {
		if b.held.Load() <= b.max-b.max/8 {
			break
		}
		if h.account.empty() {
			delete(b.accounts, h.account)
			victims = append(victims, h.account)
		}
	}
	b.mu.Unlock()
	b.evicted.Add(int64(len(victims)))
	for _, v := range victims {
		v.evict()
	}
}
