package connlimit

import (
	"sync"
	"testing"
)

func TestLargestIsEvicted(t *testing.T) {
	t.Parallel()
	b := NewBudget(100)
	var evicted []string
	open := func(name string, bytes int64) *Account {
		a := b.Open(func(int64) { evicted = append(evicted, name) })
		a.Hold(bytes)
		return a
	}
	large, middle, small := open("large", 60), open("middle", 25), open("small", 10)
	if !small.Hold(10) {
		t.Error("the account that adds is not the largest, and was evicted")
	}
	if len(evicted) != 1 || evicted[0] != "large" || b.Evicted() != 1 {
		t.Errorf("evicted %v, counted %d, want the large one", evicted, b.Evicted())
	}
	if b.Held() != 45 || large.Held() != 0 || middle.Held() != 25 || small.Held() != 20 {
		t.Errorf("held %d = %d + %d + %d, want 45 = 0 + 25 + 20", b.Held(), large.Held(), middle.Held(), small.Held())
	}
	large.Release(60)
	if large.Hold(1) || b.Held() != 45 {
		t.Errorf("an evicted account still counts: %d held, want 45", b.Held())
	}
	middle.Close()
	middle.Release(25)
	if b.Held() != 20 {
		t.Errorf("%d held after Close, want 20", b.Held())
	}
}

func TestOneThatAddsTooMuchEvictsItself(t *testing.T) {
	t.Parallel()
	b := NewBudget(100)
	closed := false
	a := b.Open(func(int64) { closed = true })
	if a.Hold(101) || !closed || b.Held() != 0 {
		t.Errorf("101 of 100 bytes: closed %v, %d held, want an eviction and 0", closed, b.Held())
	}
}

func TestNilHasNoBound(t *testing.T) {
	t.Parallel()
	var b *Budget
	a := b.Open(nil)
	if !a.Hold(1 << 40) {
		t.Error("a nil budget refused bytes")
	}
	a.Release(1 << 40)
	a.Close()
}

func TestConcurrentAccountsSumUp(t *testing.T) {
	t.Parallel()
	b := NewBudget(1000)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 200 {
				a := b.Open(func(int64) {})
				for range 10 {
					if a.Hold(40) {
						a.Release(20)
					}
				}
				a.Close()
			}
		})
	}
	wg.Wait()
	if b.Held() != 0 || len(b.accounts) != 0 {
		t.Errorf("%d bytes and %d accounts are left, want none", b.Held(), len(b.accounts))
	}
}

func BenchmarkAddRelease(b *testing.B) {
	a := NewBudget(1 << 30).Open(func(int64) {})
	b.ReportAllocs()
	for b.Loop() {
		a.Hold(100)
		a.Release(100)
	}
}
