package rules

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// Literals of all lengths, of two letters so that they nearly match everywhere, are
// found where bytes.Index finds them.
func TestLiterals(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	word := func(n int) []byte {
		text := make([]byte, n)
		for i := range text {
			text[i] = 'a' + byte(rnd.IntN(6)/5)
		}
		return text
	}
	found := 0
	for range 20_000 {
		text := word(rnd.IntN(300))
		want := word(1 + rnd.IntN(80))
		if n := len(text) - len(want); n > 0 && rnd.IntN(2) == 0 {
			copy(text[rnd.IntN(n):], want)
		}
		l := newLiteral(string(want))
		end := bytes.Index(text, want)
		if end >= 0 {
			end += len(want)
			found++
		}
		if got := l.search(text); got != end {
			t.Fatalf("%q in %q: ends at %d, want %d", want, text, got, end)
		}
	}
	if found < 5000 {
		t.Errorf("only %d were found", found)
	}
}
