package datafile

import "cmp"

// Limit is a limit of a file.
type Limit struct {
	Requests  uint32
	Burst     uint32 // 0 without HasBurst
	HasBurst  bool
	Unlimited bool
	Line, Col int // the place of the first line with the limit.
}

// limitKey tells limits apart.
type limitKey struct {
	requests, burst     uint32
	hasBurst, unlimited bool
}

func (l *Limit) key() limitKey { return limitKey{l.Requests, l.Burst, l.HasBurst, l.Unlimited} }

// compare returns 1 if l allows more than other, -1 if it allows less, else 0. If one number is larger and the other
// smaller, the number of requests decides.
func (l *Limit) compare(other *Limit) int {
	switch {
	case l.Unlimited && other.Unlimited:
		return 0
	case l.Unlimited:
		return 1
	case other.Unlimited:
		return -1
	}
	return cmp.Or(cmp.Compare(l.Requests, other.Requests), cmp.Compare(l.burst(), other.burst()))
}

// burst returns how many requests may pass at once after the first.
func (l *Limit) burst() uint32 {
	if l.HasBurst {
		return l.Burst
	}
	return max(l.Requests, 1) - 1
}
