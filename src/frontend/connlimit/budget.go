package connlimit

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// MemoryBudget bounds the bytes that all connections of the process hold together, such as for replies that clients
// have not read. When it is used up, the connections that hold the most are closed:
//
//	budget 100, accounts 60, 25, 10; the third holds 10 more
//	-> 105 held: the account with 60 is evicted, 45 remain
//
// Create it with NewMemoryBudget. A nil MemoryBudget has no bound.
type MemoryBudget struct {
	maxBytes                   int64
	heldBytes, evictedAccounts atomic.Int64

	mu           sync.Mutex
	openAccounts map[*MemoryAccount]struct{} // guarded by mu
}

// NewMemoryBudget returns a budget of max bytes. If max is 0, there is no bound.
func NewMemoryBudget(max int64) *MemoryBudget {
	if max <= 0 {
		max = math.MaxInt64
	}
	return &MemoryBudget{maxBytes: max, openAccounts: make(map[*MemoryAccount]struct{})}
}

// MaxBytes returns the bound in bytes; math.MaxInt64 if there is none.
func (b *MemoryBudget) MaxBytes() int64 {
	if b == nil {
		return math.MaxInt64
	}
	return b.maxBytes
}

// HeldBytes returns how many bytes all accounts hold now.
func (b *MemoryBudget) HeldBytes() int64 { return b.heldBytes.Load() }

// EvictedAccounts returns how many accounts were closed because the budget was used up.
func (b *MemoryBudget) EvictedAccounts() int64 { return b.evictedAccounts.Load() }

// MemoryAccount counts the bytes that one connection holds. Its methods may be called from any goroutine. A nil
// MemoryAccount holds nothing, and HoldBytes always succeeds.
type MemoryAccount struct {
	budget    *MemoryBudget
	onEvict   func(bytes int64)
	heldBytes atomic.Int64 // negative after eviction and Close.
	// the value of heldBytes by which evictLargestAccounts sorts accounts; guarded by budget.mu.
	sampledHeldBytes int64
}

// closedHeldBytes is the value of MemoryAccount.heldBytes after eviction and Close. HoldBytes never makes it positive.
const closedHeldBytes = math.MinInt64 / 2

// OpenAccount returns an account that holds nothing yet. When the budget is used up, it may call onEvict once, with the
// bytes that the account held. onEvict must close the connection and not block. Any HoldBytes on the budget may call
// it, without locks of this package.
func (b *MemoryBudget) OpenAccount(onEvict func(bytes int64)) *MemoryAccount {
	if b == nil {
		return nil
	}
	a := &MemoryAccount{budget: b, onEvict: onEvict}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.openAccounts[a] = struct{}{}
	return a
}

// HoldBytes adds n bytes, and evicts the largest accounts if the budget is used up. It returns false if this account is
// closed or evicted. Then no ReleaseBytes is needed.
func (a *MemoryAccount) HoldBytes(n int64) bool {
	switch {
	case a == nil:
		return true
	case n == 0: // The budget is memory that all connections write to, so each write costs.
		return a.heldBytes.Load() >= 0
	case a.heldBytes.Add(n) < 0:
		return false
	case a.budget.heldBytes.Add(n) > a.budget.maxBytes:
		a.budget.evictLargestAccounts()
	}
	return a.heldBytes.Load() >= 0
}

// ReleaseBytes subtracts n bytes that HoldBytes added. After eviction and Close it does nothing.
func (a *MemoryAccount) ReleaseBytes(n int64) {
	if a != nil && n != 0 && a.heldBytes.Add(-n) >= 0 {
		a.budget.heldBytes.Add(-n)
	}
}

// HeldBytes returns how many bytes the account holds; 0 after eviction and Close.
func (a *MemoryAccount) HeldBytes() int64 {
	if a == nil {
		return 0
	}
	return max(a.heldBytes.Load(), 0)
}

// Close releases all that the account holds. Call it when the connection ends.
func (a *MemoryAccount) Close() {
	if a != nil {
		a.budget.mu.Lock()
		defer a.budget.mu.Unlock()
		a.closeLocked()
	}
}

// closeLocked closes the account and returns its bytes, or less than 0 if it was closed. The caller holds budget.mu.
func (a *MemoryAccount) closeLocked() int64 {
	delete(a.budget.openAccounts, a)
	n := a.heldBytes.Swap(closedHeldBytes)
	a.budget.heldBytes.Add(-max(n, 0))
	return n
}

// evictLargestAccounts evicts accounts, the largest first, until an eighth of the budget is free.
func (b *MemoryBudget) evictLargestAccounts() {
	var evictions []func()
	b.mu.Lock()
	if b.heldBytes.Load() > b.maxBytes { // Otherwise another goroutine has evicted accounts first.
		all := slices.Collect(maps.Keys(b.openAccounts))
		for _, a := range all {
			a.sampledHeldBytes = a.heldBytes.Load()
		}
		slices.SortFunc(all, func(x, y *MemoryAccount) int { return cmp.Compare(y.sampledHeldBytes, x.sampledHeldBytes) })
		for _, a := range all {
			if a.sampledHeldBytes <= 0 || b.heldBytes.Load() <= b.maxBytes-b.maxBytes/8 {
				break
			}
			if bytes := a.closeLocked(); bytes >= 0 {
				evictions = append(evictions, func() { a.onEvict(bytes) })
			}
		}
	}
	b.mu.Unlock()
	b.evictedAccounts.Add(int64(len(evictions)))
	for _, evict := range evictions {
		evict()
	}
}
