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

type callFunc func(n uint64) (pb.RateLimitResponse_Code, error)

// Loop makes calls of a phase until it has no more, and returns when those that it started have ended.
type Loop interface{ Run(context.Context, *Phase) }

// worker makes calls, one at a time.
type worker struct {
	call  callFunc
	tally *Tally // shared with the other workers of a connection.
}

// Phase is a series of calls: the warmup, or the measured run. Calls are numbered in the order in which they start, so
// the requests of a phase do not depend on the speed of workers.
//
// In an open loop call n is due n/rate seconds after the start. If all workers are busy then, it starts late, but its
// latency counts from when it was due. Otherwise, if a server stalled for a second, only as many calls as there are
// workers would show it.
type Phase struct {
	warmup    bool
	firstCall uint64        // the number of the first call.
	maxCalls  uint64        // of 0 is no limit.
	duration  time.Duration // bounds when calls start (closed loop) or are due (open loop). 0: no limit.
	rate      float64       // the number of calls due per second; 0: a closed loop.
	lateGrace time.Duration // how long after the end of duration a late call may start.
	sleep     func(time.Duration)

	loops     int // the number of loops.
	startedAt time.Time
	started   atomic.Uint64 // the number of calls that started.
	// waiterSlot is full while a worker of an open loop waits until the next call is due.
	waiterSlot chan struct{}
	// gaveUp is the time from the start until an open loop dropped all further calls; 0: it has not. waiterSlot guards it.
	gaveUp time.Duration
	unsent uint64 // set by run: the number of calls of an open loop that were due and never started.
}

const (
	// maxSleep bounds the time between two checks of the context.
	maxSleep = 50 * time.Millisecond
	// loopStart is the time that the start of a loop may take. Without it, calls would be late while 10,000 loops start.
	loopStart = 10 * time.Microsecond
	// failurePause follows a call in a closed loop that fails at once, because there is no connection.
	failurePause = 10 * time.Millisecond
)

// run makes the calls until ctx ends, and returns the time from the start to the end of the last one.
func (p *Phase) run(ctx context.Context, loops []Loop) time.Duration {
	p.loops = len(loops)
	p.waiterSlot = make(chan struct{}, 1)
	p.startedAt = time.Now()
	if p.rate > 0 {
		p.startedAt = p.startedAt.Add(time.Duration(len(loops)) * loopStart)
	}
	interrupted := make(chan time.Duration, 1)
	stop := context.AfterFunc(ctx, func() { interrupted <- time.Since(p.startedAt) })
	var wg sync.WaitGroup
	for _, l := range loops {
		wg.Go(func() { l.Run(ctx, p) })
	}
	wg.Wait()
	took := time.Since(p.startedAt)
	if !stop() { // Calls that became due after the interruption are not unsent.
		p.gaveUp = min(p.gaveUp, <-interrupted)
	}
	if due, started := p.dueWithin(p.gaveUp), p.started.Load(); due > started {
		p.unsent = due - started
	}
	return took
}

// Run makes calls until Next has none.
func (w worker) Run(ctx context.Context, p *Phase) {
	for {
		n, due, ok := p.Next(ctx, true)
		if !ok {
			return
		}
		var lateness time.Duration
		if p.rate > 0 {
			lateness = time.Since(due)
		}
		answer, err := w.call(n)
		w.tally.Add(answer, err, time.Since(due), lateness)
		if p.rate == 0 && status.Code(err) == codes.Unavailable {
			time.Sleep(failurePause)
		}
	}
}

// IsOpen reports whether calls are due at fixed times.
func (p *Phase) IsOpen() bool { return p.rate > 0 }

// Next returns the number of the next call once it is due. ok is false if there is none, or none that can be had
// without a wait.
func (p *Phase) Next(ctx context.Context, wait bool) (n uint64, due time.Time, ok bool) {
	switch {
	case p.rate > 0:
		n, due, ok = p.nextDue(ctx, wait)
	case ctx.Err() != nil:
	default:
		n, due = p.started.Add(1)-1, time.Now()
		ok = !p.ended(n, due.Sub(p.startedAt))
	}
	return p.firstCall + n, due, ok
}

// ended reports whether call n is beyond the limits of the phase. after is the time from the start to the call.
func (p *Phase) ended(n uint64, after time.Duration) bool {
	return p.maxCalls > 0 && n >= p.maxCalls || p.duration > 0 && after >= p.duration
}

// nextDue is Next for an open loop. It counts from 0.
func (p *Phase) nextDue(ctx context.Context, wait bool) (n uint64, due time.Time, ok bool) {
	if wait {
		p.waiterSlot <- struct{}{}
	} else {
		select {
		case p.waiterSlot <- struct{}{}:
		default:
			return 0, due, false
		}
	}
	defer func() { <-p.waiterSlot }()
	n = p.started.Load()
	after := time.Duration(float64(n) / p.rate * float64(time.Second))
	if p.ended(n, after) {
		return 0, due, false
	}
	due = p.startedAt.Add(after)
	for {
		now := time.Now()
		if ctx.Err() != nil || p.duration > 0 && now.Sub(p.startedAt) > p.duration+p.lateGrace {
			if p.gaveUp == 0 {
				p.gaveUp = now.Sub(p.startedAt)
			}
			return 0, due, false
		}
		early := due.Sub(now)
		if early <= 0 {
			p.started.Add(1)
			return n, due, true
		}
		if !wait {
			return 0, due, false
		}
		p.sleep(min(early, maxSleep))
	}
}

// Share returns how many calls of an open loop are due at now and have not started, for one of its loops.
func (p *Phase) Share(now time.Time) uint64 {
	due, started := p.dueWithin(now.Sub(p.startedAt)), p.started.Load()
	return (max(due, started) - started) / uint64(p.loops)
}

// dueWithin returns how many calls of an open loop are due in the given time from the start.
func (p *Phase) dueWithin(d time.Duration) uint64 {
	if p.duration > 0 {
		d = min(d, p.duration)
	}
	n := uint64(math.Ceil(max(0, d.Seconds()) * p.rate))
	if p.maxCalls > 0 {
		n = min(n, p.maxCalls)
	}
	return n
}
