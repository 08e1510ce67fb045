package bench

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
)

// caller makes the n-th call and waits for its end.
type caller func(n uint64) outcome

// outcome is what came of a call.
type outcome struct {
	failed codes.Code // OK: there is an answer
	answer pb.RateLimitResponse_Code
	err    error // of a call that failed
}

// worker makes calls, one at a time.
type worker struct {
	call  caller
	tally *tally // shared by some workers
}

// phase is a stretch of calls: the warmup, or what is measured. Calls are
// numbered in the order in which they start, whoever makes them, so that the
// requests of a phase do not depend on who is how fast.
//
// In an open loop call n is due n/rate seconds after the beginning. When all
// workers are busy at that instant it starts late, and is measured from when it
// was due all the same: a server that stalls for a second would else be seen by
// no more calls than there are workers.
type phase struct {
	from  uint64        // number of the first call
	calls uint64        // how many there are at most; 0: no limit
	lasts time.Duration // no call is due, in a closed loop none starts, later; 0: no limit
	rate  float64       // calls due a second; 0: a closed loop
	grace time.Duration // how much later a late call may start
	sleep func(time.Duration)

	begun  time.Time
	taken  atomic.Uint64
	turn   chan struct{} // open loop: full while somebody waits for the next call to be due
	unsent uint64        // open loop: calls that were due and never started; once run has returned
	cut    time.Duration // guarded by turn: when the rest of the calls was given up; 0: it was not
}

const (
	// nap is the longest sleep, so that the end of a context is noticed.
	nap = 50 * time.Millisecond
	// breath is what a worker of a closed loop waits after a call for which
	// there was no connection, which fails at once.
	breath = 10 * time.Millisecond
)

// run has the workers make the calls, and returns how long that took, until the
// last one's end. When ctx ends no further call starts.
func (p *phase) run(ctx context.Context, workers []worker) time.Duration {
	p.turn = make(chan struct{}, 1)
	p.begun = time.Now()
	ended := make(chan time.Duration, 1)
	stop := context.AfterFunc(ctx, func() { ended <- time.Since(p.begun) })
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() { p.work(ctx, w) })
	}
	wg.Wait()
	took := time.Since(p.begun)
	if !stop() { // what came due since, while calls under way were waited for, nobody meant to send
		p.cut = min(p.cut, <-ended)
	}
	if due, taken := p.dueBy(p.cut), p.taken.Load(); due > taken {
		p.unsent = due - taken
	}
	return took
}

func (p *phase) work(ctx context.Context, w worker) {
	for {
		n, due, ok := p.next(ctx)
		if !ok {
			return
		}
		var late time.Duration
		if p.rate > 0 {
			late = time.Since(due)
		}
		out := w.call(p.from + n)
		w.tally.add(out, time.Since(due), late)
		if out.failed == codes.Unavailable && p.rate == 0 {
			time.Sleep(breath)
		}
	}
}

// next takes the next call and returns once it is due; not ok: there is none.
func (p *phase) next(ctx context.Context) (n uint64, due time.Time, ok bool) {
	if p.rate > 0 {
		return p.nextDue(ctx)
	}
	if ctx.Err() != nil {
		return 0, due, false
	}
	n = p.taken.Add(1) - 1
	now := time.Now()
	if p.calls > 0 && n >= p.calls || p.lasts > 0 && now.Sub(p.begun) >= p.lasts {
		return 0, due, false
	}
	return n, now, true
}

func (p *phase) nextDue(ctx context.Context) (n uint64, due time.Time, ok bool) {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	n = p.taken.Load()
	after := time.Duration(float64(n) / p.rate * float64(time.Second))
	if p.calls > 0 && n >= p.calls || p.lasts > 0 && after >= p.lasts {
		return 0, due, false
	}
	due = p.begun.Add(after)
	for {
		now := time.Now()
		if ctx.Err() != nil || p.lasts > 0 && now.Sub(p.begun) > p.lasts+p.grace {
			if p.cut == 0 {
				p.cut = now.Sub(p.begun)
			}
			return 0, due, false
		}
		wait := due.Sub(now)
		if wait <= 0 {
			p.taken.Add(1)
			return n, due, true
		}
		p.sleep(min(wait, nap))
	}
}

// dueBy is how many calls are due so long after the beginning.
func (p *phase) dueBy(after time.Duration) uint64 {
	if p.lasts > 0 {
		after = min(after, p.lasts)
	}
	n := uint64(math.Ceil(after.Seconds() * p.rate))
	if p.calls > 0 {
		n = min(n, p.calls)
	}
	return n
}
