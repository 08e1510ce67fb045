package leased

import "math/bits"

// approx is a number of units in a byte: the four highest bits that are set, and how many bits follow them. Numbers up
// to 15 are exact. Greater values are greater numbers.
type approx uint8

// approxBelow returns the largest value that is at most n.
func approxBelow(n uint32) approx {
	if n < 8 {
		return approx(n)
	}
	shift := bits.Len32(n) - 4
	return approx(shift<<3) + approx(n>>shift)
}

// approxAbove returns the smallest value that is at least n, or the largest one.
func approxAbove(n uint32) approx {
	a := approxBelow(n)
	if a.units() < n && a < approxBelow(1<<32-1) {
		a++
	}
	return a
}

// units returns the number.
func (a approx) units() uint32 {
	if a < 16 {
		return uint32(a)
	}
	return (uint32(a)&7 | 8) << (a>>3 - 1)
}
