package access

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/backend/memory"
)

func TestTokenAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, err := NewAttempts()
		if err != nil {
			t.Fatal(err)
		}
		for range 100 { // The token is right.
			if wait := a.Add("10.0.0.7"); wait > 0 {
				t.Fatalf("a client with the token waits %v", wait)
			}
			a.Forgive("10.0.0.7")
		}
		for i := range 10 {
			if wait := a.Add("10.0.0.7"); wait > 0 {
				t.Errorf("guess %d waits %v", i, wait)
			}
		}
		if wait := a.Add("10.0.0.7"); wait != 6*time.Second {
			t.Errorf("the eleventh guess waits %v, want 6s", wait)
		}
		for i := range 100_000 { // Many other clients do not give it new guesses, and take no memory without end.
			a.Add(fmt.Sprint("other ", i))
		}
		if wait := a.Add("10.0.0.7"); wait == 0 {
			t.Error("other clients have made room for a guess")
		}
		if n := a.counters.Stats().Bytes; n > memory.MinBytes {
			t.Errorf("%d bytes", n)
		}
		time.Sleep(6 * time.Second)
		if wait := a.Add("10.0.0.7"); wait > 0 {
			t.Errorf("after the wait: %v", wait)
		}
	})
}
