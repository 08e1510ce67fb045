package chaos

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	holdTime = period / 2
	reserve  = limit / 4 // units that a hold takes
)

// holdAction is what a call does with the hold that it names.
type holdAction uint8

const (
	take holdAction = iota
	settle
	release
)

// holdCall is what a call of a rule with holds is about; zero for other rules.
type holdCall struct {
	id     int // of the hold, from 1
	action holdAction
	units  uint64
}

// request is base with the hold.
func (h holdCall) request(base *rlsv3.RateLimitRequest) *rlsv3.RateLimitRequest {
	if h.id == 0 {
		return base
	}
	d := &commonv3.RateLimitDescriptor{
		Entries: append(base.Descriptors[0].Entries[:1:1],
			&commonv3.RateLimitDescriptor_Entry{Key: holdIDKey, Value: strconv.Itoa(h.id)}),
		HitsAddend: wrapperspb.UInt64(h.units),
	}
	if h.action != take {
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{
			Key:   "hold",
			Value: []string{settle: "settle", release: "release"}[h.action],
		})
	}
	return &rlsv3.RateLimitRequest{Domain: base.Domain, Descriptors: []*commonv3.RateLimitDescriptor{d}}
}

// holdFor is a caller that has one hold. It takes the hold, some callers twice; works for a while, some
// for longer than the hold lasts; and ends the hold, some twice, and some take it once more. Some die
// while they work. A caller that was refused, or got no answer, may end the hold that it does not have,
// as proxies do. The number of the turn decides which of these it does.
func (l *load) holdFor(ctx context.Context, k, turn int) {
	random := rand.New(rand.NewPCG(uint64(turn), 0))
	one := func(in int) bool { return random.IntN(in) == 0 }
	do := func(a holdAction, units uint64) outcome {
		if !l.mayCall() {
			return unmade
		}
		return l.call(k, holdCall{id: turn + 1, action: a, units: units})
	}
	ending, used := release, uint64(0)
	if l.keys[k].rule.kind == reservations && !one(6) {
		ending, used = settle, uint64(random.IntN(2*reserve))
	}
	got := do(take, reserve)
	if got != unmade && one(4) {
		if again := do(take, reserve); got != passed {
			got = again
		}
	}
	if got == passed {
		select {
		case <-time.After(holdTime/10 + time.Duration(random.Int64N(int64(holdTime)))):
		case <-ctx.Done():
			return
		}
		if one(5) {
			return
		}
	} else if ending = release; one(2) {
		return
	}
	do(ending, used)
	if one(5) {
		do(ending, used)
	}
	if got == passed && one(8) {
		do(take, reserve)
	}
}
