package denials

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A ring keeps the newest denials, and returns those that a reader does not have yet.
func TestRing(t *testing.T) {
	t.Parallel()
	start := time.UnixMicro(100)
	for _, tt := range []struct {
		added int
		after uint64
		limit int
		want  string
	}{
		{0, 0, 10, "[]"},
		{0, 100, 10, "[]"},
		{0, 999, 10, "[]"},
		{1, 0, 10, "[101]"},
		{3, 0, 10, "[101 102 103]"},
		{3, 0, 2, "[102 103]"},
		{3, 0, 0, "[]"},
		{3, 0, -1, "[]"},
		{3, 101, 10, "[102 103]"},
		{3, 101, 1, "[103]"},
		{3, 103, 10, "[]"},
		{3, 999, 10, "[]"},
		{9, 0, 10, "[106 107 108 109]"},
		{9, 104, 10, "[106 107 108 109]"},
		{9, 107, 10, "[108 109]"},
	} {
		r := NewRing(4, start)
		for i := range tt.added {
			r.Add(Denial{Rule: fmt.Sprint(101 + i)})
		}
		ids := []uint64{}
		for _, d := range r.After(tt.after, tt.limit) {
			if ids = append(ids, d.ID); fmt.Sprint(d.ID) != d.Rule {
				t.Errorf("%+v: the denial %d has the rule %s", tt, d.ID, d.Rule)
			}
		}
		if got := fmt.Sprint(ids); got != tt.want {
			t.Errorf("%+v: got %s", tt, got)
		}
	}
}

// A reader waits until there is a denial that it does not have.
func TestNext(t *testing.T) {
	t.Parallel()
	r := NewRing(4, time.UnixMicro(100))
	isClosed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	first, second := r.Next(0), r.Next(100)
	if isClosed(first) || isClosed(second) {
		t.Error("closed without a denial")
	}
	r.Add(Denial{})
	third := r.Next(101)
	if !isClosed(first) || !isClosed(second) || !isClosed(r.Next(0)) || !isClosed(r.Next(100)) {
		t.Error("not closed after a denial")
	}
	if isClosed(third) {
		t.Error("closed without a new denial")
	}
	r.Add(Denial{})
	if !isClosed(third) {
		t.Error("not closed after a new denial")
	}
}

// Long descriptors are cut, so that a ring has a fixed size.
func TestRingCutsTexts(t *testing.T) {
	t.Parallel()
	r := NewRing(1, time.UnixMicro(0))
	r.Add(Denial{Descriptor: strings.Repeat("x", 1<<20)})
	if got := r.After(0, 1)[0].Descriptor; got != strings.Repeat("x", 512)+"…" {
		t.Errorf("got %d bytes", len(got))
	}
}

// Each of several readers gets all denials, in order.
func TestConcurrentReaders(t *testing.T) {
	t.Parallel()
	const denials = 1000
	r := NewRing(denials, time.UnixMicro(0))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var got []uint64
			for after := uint64(0); after < denials; {
				<-r.Next(after)
				for _, d := range r.After(after, denials) {
					after = d.ID
					got = append(got, d.ID)
				}
			}
			if len(got) != denials || !slices.IsSorted(got) {
				t.Errorf("got %d denials", len(got))
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			for range denials / 2 {
				r.Add(Denial{})
			}
		})
	}
	wg.Wait()
}
