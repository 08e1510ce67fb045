package datafile

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
