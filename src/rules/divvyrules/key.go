package divvyrules

import (
	"fmt"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
)

// PeerKey returns divvy's key of a limit of an ordered list, so that both can count in one Redis. It returns nil for
// limits that divvy does not have: those that are no first-hit window, and those with several keys in `per`.
//
//	divvy:<key>=<pattern> <key>=<pattern>:<value>:<requests>:<seconds>
func PeerKey(r *rules.Rule) *rules.PeerKey {
	lim, perKeys := &r.Limit, r.ListSettings.PerKeys
	if lim.Kind != algorithm.FirstHitWindow || lim.Max == 0 || lim.Period%time.Second != 0 || lim.CountBlocked ||
		lim.Hold > 0 || len(perKeys) > 1 {
		return nil
	}
	return &rules.PeerKey{
		Start: "divvy:" + r.MatchText() + ":", PerKeys: perKeys, End: fmt.Sprintf(":%d:%d", lim.Max, lim.Period/time.Second),
	}
}
