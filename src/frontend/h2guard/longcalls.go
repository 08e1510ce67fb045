package h2guard

import (
	"sync/atomic"

	"ratelimit/src/frontend/connlimit"
)

// MaxLongCalls is how many long calls one connection may have at a time.
const MaxLongCalls = 8

// LongCalls bounds the calls of one connection that last until the client ends them, such as health
// watches. The methods of a nil LongCalls do nothing.
type LongCalls struct {
	guard   *Guard
	account *connlimit.MemoryAccount
	count   atomic.Int64
}

// LongCalls returns a bound for the long calls of a connection with this account.
func (g *Guard) LongCalls(account *connlimit.MemoryAccount) *LongCalls {
	return &LongCalls{guard: g, account: account}
}

// Open charges bytes for a call. It returns false if the connection has MaxLongCalls such calls, or if those of all
// connections hold a quarter of the budget. Otherwise the caller must call Close with the same number of bytes.
func (l *LongCalls) Open(bytes int64) bool {
	if l == nil {
		return true
	}
	g := l.guard
	calls, all := l.count.Add(1), g.longCallBytes.Add(bytes)
	if calls <= MaxLongCalls && (g.memoryBudget == nil || all <= g.memoryBudget.MaxBytes()/4) {
		l.account.HoldBytes(bytes)
		return true
	}
	l.count.Add(-1)
	g.longCallBytes.Add(-bytes)
	g.RefusedLongCalls.Add(1)
	return false
}

// Close releases the bytes that Open charged.
func (l *LongCalls) Close(bytes int64) {
	if l != nil {
		l.count.Add(-1)
		l.guard.longCallBytes.Add(-bytes)
		l.account.ReleaseBytes(bytes)
	}
}

// Hold charges bytes that a call holds beside those of Open to the connection. It returns false if the connection is
// closed, because it holds the most while the budget is used up. Otherwise the caller must call Release when the memory
// is free.
func (l *LongCalls) Hold(bytes int64) bool { return l == nil || l.account.HoldBytes(bytes) }

// Release releases bytes that Hold charged.
func (l *LongCalls) Release(bytes int64) {
	if l != nil {
		l.account.ReleaseBytes(bytes)
	}
}
