package remote

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A server that is of no use is tried after pauses that grow to half a second, by
// one at a time, and by everybody once a connection was of use.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		down := errors.New("down")
		for range 3 {
			if err := g.Pass(); err != nil {
				t.Fatal(err)
			}
		}
		g.CloseForPause(context.Canceled) // the store ends
		if err := g.Pass(); err != nil {
			t.Fatal(err)
		}
		g.CloseForPause(down)
		g.CloseForPause(errors.New("down as well")) // together with the first
		longest := 10 * time.Millisecond
		for n := range 10 {
			begun := time.Now()
			for g.Pass() != nil {
				if err := g.Pass(); !errors.Is(err, down) {
					t.Fatalf("refused for %v", err)
				}
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(begun); took < longest/2 || took > longest+time.Millisecond {
				t.Errorf("pause %d: %v, want %v or up to a half less", n, took, longest)
			}
			if g.Pass() == nil {
				t.Error("two at a time")
			}
			g.CloseForPause(down)
			longest = min(2*longest, 500*time.Millisecond)
		}
		g.Open()
		for range 3 {
			if err := g.Pass(); err != nil {
				t.Error(err)
			}
		}
	})
}
