package algorithm

import (
	"fmt"
	"slices"
)

// OnFailure is what becomes of a hit whose store does not answer.
type OnFailure uint8

const (
	// FailWithError leaves it to the caller: the verdict has an Err.
	FailWithError OnFailure = iota
	// FailAllowing lets the hit pass.
	FailAllowing
	// FailDenying refuses it.
	FailDenying
	// FailLocally counts it in this process, against this replica's share of the
	// limit; see Limit.Share.
	FailLocally

	onFailures
)

var onFailureNames = [onFailures]string{"error", "allow", "deny", "local"}

// String is the word that a rule file uses.
func (f OnFailure) String() string {
	if f < onFailures {
		return onFailureNames[f]
	}
	return fmt.Sprintf("on failure %d", uint8(f))
}

// ParseOnFailure is the one that a rule file calls so.
func ParseOnFailure(word string) (f OnFailure, ok bool) {
	i := slices.Index(onFailureNames[:], word)
	return OnFailure(max(i, 0)), i >= 0
}

// OnFailures are the words for all there are.
func OnFailures() []string { return slices.Clone(onFailureNames[:]) }
