package backend

import (
	"fmt"
	"slices"
)

// Fallback says how a hit is decided when its store does not answer.
type Fallback uint8

const (
	// FallbackError leaves the decision to the caller: the verdict has an Err.
	FallbackError Fallback = iota
	// FallbackAllow lets the hit pass.
	FallbackAllow
	// FallbackDeny refuses the hit.
	FallbackDeny
	// FallbackLocal counts the hit in this process, against this replica's share of the limit.
	FallbackLocal

	numFallbacks
)

var fallbackNames = [numFallbacks]string{"error", "allow", "deny", "local"}

// String returns the word that rule files use.
func (f Fallback) String() string {
	if f < numFallbacks {
		return fallbackNames[f]
	}
	return fmt.Sprintf("fallback %d", uint8(f))
}

// ParseFallback returns the fallback with that word.
func ParseFallback(word string) (f Fallback, ok bool) {
	i := slices.Index(fallbackNames[:], word)
	return Fallback(max(i, 0)), i >= 0
}

// FallbackNames returns the words of all fallbacks.
func FallbackNames() []string { return slices.Clone(fallbackNames[:]) }
