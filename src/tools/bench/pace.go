package bench

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// caller makes the n-th call and returns its outcome.
type caller func(n uint64) outcome

// outcome is the answer to a call, or its error.
type outcome struct {
	answer pb.RateLimitResponse_Code
	err    error
}

// worker makes calls, one at a time.
type worker struct {
	call  caller
	tally *tally // shared by some workers
}

// phase is a series of calls: the warmup, or the measured run. Calls are numbered in the order in which they start, so the
// requests of a phase do not depend on the speed of workers.
//
// In an open loop call n is due n/rate seconds after the start. If all workers are busy then, it starts late, but its latency
// starts when it was due. Otherwise only as many calls as there are workers would show that a server stalled for a second.
type phase struct {
	warmup bool
	from   uint64        // number of the first call
	calls  uint64        // the largest number of calls; 0: no limit
	lasts  time.Duration // no call is due (open loop) or starts (closed loop) later; 0: no limit
	rate   float64       // calls due a second; 0: a closed loop
	grace  time.Duration // how much later a late call may start
	sleep  func(time.Duration)

	begun  time.Time
	taken  atomic.Uint64
	turn   chan struct{} // open loop: full while a worker waits until the next call is due
	unsent uint64        // open loop: calls that were due and never started; set when run returns
	cut    time.Duration // guarded by turn: when the other calls were dropped; 0: they were not
}

const (
	// nap is the longest sleep between two checks of the context.
	nap = 50 * time.Millisecond
	// breath is the wait of a closed loop's worker after a call without a connection, which fails at once.
	breath = 10 * time.Millisecond
)

// run makes the calls, and returns the time from the start to the end of the last one. When ctx ends no further call starts.
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
	if !stop() { // calls that became due after the interrupt are not unsent
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
		if p.rate == 0 && status.Code(out.err) == codes.Unavailable {
			time.Sleep(breath)
		}
	}
}

// next returns the next call once it is due. ok is false if there is none.
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

// dueBy returns how many calls are due that long after the start.
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
