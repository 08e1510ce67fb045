package datafile

import "cmp"

// Limit is a limit of a file.
type Limit struct {
	Numbers
	Line, Col int // the place of the first line with the limit
}

// Numbers are what a limit allows.
type Numbers struct {
	Requests  uint64
	Burst     uint64 // 0 without HasBurst
	HasBurst  bool
	Unlimited bool
}

// compare returns 1 if l allows more than other, -1 if it allows less, else 0. If one number is larger and the other
// smaller, the number of requests decides.
func (l *Numbers) compare(other *Numbers) int {
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
func (l *Numbers) burst() uint64 {
	if l.HasBurst {
		return l.Burst
	}
	return max(l.Requests, 1) - 1
}
