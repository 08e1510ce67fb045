package backendtest

import (
	"fmt"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// raisedStep is a hit under a limit that has changed since the hits before it.
type raisedStep struct {
	most   uint64
	op     algorithm.Op
	amount uint64
	passes bool
	after  uint64
}

// testRaisedLimit checks that a fixed window that counts refused hits has room as soon as its limit is raised: all but
// what was admitted. It adds a number to all limits and to the first amount, so that large counters are tested, too.
func (suite *Suite) testRaisedLimit(t *testing.T, open func(*testing.T) backend.Backend) {
	steps := []raisedStep{
		{1, charge, 1, true, 1},
		{1, charge, 1, false, 2},
		{1, charge, 1, false, 3},
		{2, look, 1, true, 1},
		{1, look, 0, false, 3}, // The look under the raised limit has changed nothing.
		{2, charge, 1, true, 2},
		{2, charge, 1, false, 3},
		{2, charge, 5, false, 8},
		{5, look, 3, true, 2},
		{5, charge, 4, false, 6},
		{5, charge, 1, false, 7}, // Of the same limit refused hits use up the room.
		{4, charge, 1, false, 8}, // So they do of a lower one.
		{5, charge, 2, true, 4},  // It is raised again.
		{5, charge, 2, false, 6},
		{5, refund, 1, true, 5}, // A refund gives back what was admitted: 3 are left, and 2 were refused.
		{7, charge, 4, true, 7},
	}
	if suite.UpstreamCounts {
		steps = []raisedStep{
			{1, charge, 1, true, 1},
			{1, charge, 1, false, 2},
			{2, charge, 1, false, 3},
			{4, charge, 1, true, 4},
		}
	}
	for _, many := range []uint64{0, 1 << 21, 1 << 40} {
		t.Run(fmt.Sprintf("%d more", many), func(t *testing.T) {
			store := open(t)
			for i, want := range steps {
				amount := want.amount
				if i == 0 {
					amount += many
				}
				limit := countingBlocked(algorithm.FixedWindow, want.most+many, time.Minute)
				v := send(t, store, epoch, backend.Hit{Key: []byte("k"), Limit: limit, Op: want.op, Amount: amount})[0]
				if v.Over == want.passes || v.After != want.after+many {
					t.Fatalf("step %d, %+v: %+v", i, want, v)
				}
			}
		})
	}
}
