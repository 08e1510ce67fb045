package connlimit

import (
	"sync"
	"testing"
)

func TestLargestIsEvicted(t *testing.T) {
	t.Parallel()
	b := NewMemoryBudget(100)
	var evicted []string
	open := func(name string, bytes int64) *MemoryAccount {
		a := b.OpenAccount(func(int64) { evicted = append(evicted, name) })
		a.HoldBytes(bytes)
		return a
	}
	large, middle, small := open("large", 60), open("middle", 25), open("small", 10)
	if !small.HoldBytes(10) {
		t.Error("the account that adds is not the largest, and was evicted")
	}
	if len(evicted) != 1 || evicted[0] != "large" || b.EvictedAccounts() != 1 {
		t.Errorf("evicted %v, counted %d, want the large one", evicted, b.EvictedAccounts())
	}
	if b.HeldBytes() != 45 || large.HeldBytes() != 0 || middle.HeldBytes() != 25 || small.HeldBytes() != 20 {
		t.Errorf("held %d = %d + %d + %d, want 45 = 0 + 25 + 20", b.HeldBytes(), large.HeldBytes(), middle.HeldBytes(),
			small.HeldBytes())
	}
	large.ReleaseBytes(60)
	if large.HoldBytes(1) || b.HeldBytes() != 45 {
		t.Errorf("an evicted account still counts: %d held, want 45", b.HeldBytes())
	}
	middle.Close()
	middle.ReleaseBytes(25)
	if b.HeldBytes() != 20 {
		t.Errorf("%d held after Close, want 20", b.HeldBytes())
	}
}

func TestOneThatAddsTooMuchEvictsItself(t *testing.T) {
	t.Parallel()
	b := NewMemoryBudget(100)
	closed := false
	a := b.OpenAccount(func(int64) { closed = true })
	if a.HoldBytes(101) || !closed || b.HeldBytes() != 0 {
		t.Errorf("101 of 100 bytes: closed %v, %d held, want an eviction and 0", closed, b.HeldBytes())
	}
}

func TestNilHasNoBound(t *testing.T) {
	t.Parallel()
	var b *MemoryBudget
	a := b.OpenAccount(nil)
	if !a.HoldBytes(1 << 40) {
		t.Error("a nil budget refused bytes")
	}
	a.ReleaseBytes(1 << 40)
	a.Close()
}

func TestConcurrentAccountsSumUp(t *testing.T) {
	t.Parallel()
	b := NewMemoryBudget(1000)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 200 {
				a := b.OpenAccount(func(int64) {})
				for range 10 {
					if a.HoldBytes(40) {
						a.ReleaseBytes(20)
					}
				}
				a.Close()
			}
		})
	}
	wg.Wait()
	if b.HeldBytes() != 0 || len(b.openAccounts) != 0 {
		t.Errorf("%d bytes and %d accounts are left, want none", b.HeldBytes(), len(b.openAccounts))
	}
}

func BenchmarkAddRelease(b *testing.B) {
	a := NewMemoryBudget(1 << 30).OpenAccount(func(int64) {})
	b.ReportAllocs()
	for b.Loop() {
		a.HoldBytes(100)
		a.ReleaseBytes(100)
	}
}
