package quota

import (
	"bytes"
	"slices"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// SortEntries sorts the entries of a bucket by key, which is the order in which they match rules.
func SortEntries(entries []rules.Entry) {
	slices.SortStableFunc(entries, func(a, b rules.Entry) int { return bytes.Compare(a.Key, b.Key) })
}

// Division says how the units of a bucket are divided among proxies, while nothing is used.
type Division struct {
	Action        Action  // The other fields are set for AssignUnits only.
	AtOnce        uint64  // how many units the limits give at once.
	RatePerSecond float64 // how many units the limits give in the long run.
	NewProxyUnits uint64  // what a proxy gets whose demand is not known.
	IdleUnits     uint64  // what all proxies without demand keep together.
}

// DivisionOf returns how the units of target are divided.
func DivisionOf(target limiter.QuotaTarget) Division {
	b := bucket{target: target}
	d := Division{Action: b.blanket()}
	if d.Action == AssignUnits {
		q := quantities{rate: b.rate(), floor: b.floor(), capacity: b.capacity()}
		d.AtOnce, d.RatePerSecond, d.NewProxyUnits, d.IdleUnits = q.capacity, q.rate, newcomerUnits(q.capacity, &q), q.floor
	}
	return d
}
