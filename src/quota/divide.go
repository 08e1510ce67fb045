package quota

import "math/bits"

// claim is what one proxy asks of a limit in one division.
type claim struct {
	taken uint64 // what the proxy already got in the current window.
	want  uint64 // how many more units it can use now.
	got   uint64 // the result of divide: at most want.

	// member and wish belong to the caller of divide: the proxy's part of the bucket, and how many units it wants if there
	// are enough.
	member *member
	wish   uint64
}

// divide shares available units among claims, max-min fair over the window: it sets got so that the smallest taken+got
// of all claims that get less than they want is as large as possible. All units are given unless all claims are
// satisfied.
//
//	available 10   taken 0 want 2   ->  2   satisfied
//	               taken 0 want 9   ->  5   } 5 in the window, each
//	               taken 2 want 9   ->  3   }
//
// Units that cannot be shared evenly go to the first claims, so callers rotate the order.
func divide(available uint64, claims []claim) {
	var wanted, highest uint64
	for i := range claims {
		c := &claims[i]
		c.got = c.want
		wanted += c.want
		highest = max(highest, c.taken+c.want)
	}
	if wanted <= available {
		return
	}
	low, high := uint64(0), highest // The level low costs at most available; the level high costs more.
	for high-low > 1 {
		level := low + (high-low)/2
		if costOfLevel(level, claims) <= available {
			low = level
		} else {
			high = level
		}
	}
	rest := available
	for i := range claims {
		claims[i].got = claims[i].upTo(low)
		rest -= claims[i].got
	}
	for i := range claims {
		if rest > 0 && claims[i].upTo(low+1) > claims[i].got {
			claims[i].got++
			rest--
		}
	}
}

// upTo returns how many units bring the claim to level, at most what it wants.
func (c *claim) upTo(level uint64) uint64 {
	if level <= c.taken {
		return 0
	}
	return min(c.want, level-c.taken)
}

// costOfLevel returns how many units bring all claims to level.
func costOfLevel(level uint64, claims []claim) (cost uint64) {
	for i := range claims {
		sum, carry := bits.Add64(cost, claims[i].upTo(level), 0)
		if carry > 0 {
			return 1<<64 - 1
		}
		cost = sum
	}
	return cost
}
