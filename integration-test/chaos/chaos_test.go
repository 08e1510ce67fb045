package chaos

import (
	"fmt"
	"testing"
	"time"
)

// Each fault once, on one store.
func TestFaultsInShort(t *testing.T) {
	if *full || testing.Short() {
		t.Skip("TestEveryFault has all of this, and go test -short has no time")
	}
	onEvery(t, inShort.atOnce, func(t *testing.T, s *store) {
		for i := range faults {
			if f := &faults[i]; f.short == s.name {
				t.Run(f.name, func(t *testing.T) { try(t, f, s, inShort).report(t) })
			}
		}
	})
}

// Every fault on every store.
func TestEveryFault(t *testing.T) {
	if !*full {
		t.Skip("this takes some minutes: make chaos")
	}
	r := newReport()
	begun := time.Now()
	onEvery(t, inFull.atOnce, func(t *testing.T, s *store) {
		for i := range faults {
			f := &faults[i]
			if f.unlike[s.name] != "" {
				continue
			}
			t.Run(f.name, func(t *testing.T) {
				c := try(t, f, s, inFull)
				r.add(c)
				c.report(t)
			})
		}
	})
	r.Took = time.Since(begun)
	fmt.Printf("\n%s\n%s\n", text(r.verdicts()), text(r.figureRows()))
	if *write && !t.Failed() {
		if err := r.write(); err != nil {
			t.Fatal(err)
		}
	}
}
