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
	Action        string  `json:"action,omitempty"`          // units, allow_all or deny_all. The other fields are set for units only.
	AtOnce        uint64  `json:"at_once,omitempty"`         // how many units the limits give at once.
	RatePerSecond float64 `json:"rate_per_second,omitempty"` // how many units the limits give in the long run.
	NewProxyUnits uint64  `json:"new_proxy_units,omitempty"` // what a proxy gets whose demand is not known.
	IdleUnits     uint64  `json:"idle_units,omitempty"`      // what all proxies without demand keep together.
}

// DivisionOf returns how the units of target are divided.
func DivisionOf(target limiter.QuotaTarget) Division {
	b := bucket{terms: termsOf(target.Hits)}
	if b.terms.action != AssignUnits {
		return Division{Action: b.terms.action.String()}
	}
	q := quantities{terms: b.terms, floor: b.floor()}
	return Division{q.action.String(), q.capacity, q.rate, newcomerUnits(q.capacity, &q), q.floor}
}
