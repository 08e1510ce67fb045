package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"ratelimit/src/backend/changes"
	"ratelimit/src/backend/remote"
	"ratelimit/src/metrics"
	"ratelimit/src/operator/output"
)

// Pool is Redis or Memcached, with the pings that find out whether it answers.
type Pool struct {
	name            string // PoolState.Name
	productName     string // Redis or Memcached.
	labelInMessages string
	timeoutSetting  string // the name of a variable, for messages.
	alwaysPing      bool   // continues pings after the first answer, because health depends on them.
	// Before the first answer, the time between two messages about the failed pings doubles from firstPingPause to
	// maxPingPause.
	firstPingPause, maxPingPause time.Duration
	startTimeout                 time.Duration     // ends the process if no ping has succeeded. 0 means no timeout.
	BatchHits                    metrics.Sizes     // the number of hits of each batch.
	BatchTimes                   metrics.Histogram // the duration of each batch.
	pingTimeout                  time.Duration
	tlsCheck                     storeTLSCheck
	client
	minters []*minter // those that mint tokens for it

	mu    sync.Mutex
	state PoolState // guarded by mu; without its note and outage.
}

// client is what Redis and Memcached have in common.
type client interface {
	changes.Store
	Run(context.Context) error
	Ping(context.Context) error
	Stats() remote.Stats
	SlowServer() *remote.SlowError // SlowServer returns a server that answers later than a call may take, or nil.
}

// ClosedConns returns the number of connections that were closed.
func (p *Pool) ClosedConns() int64 {
	st := p.Stats()
	return st.Dials - st.OpenConnections
}

// addPool adds the pool of a store that was made, and its figures.
func (s *Store) addPool(p *Pool, made client) {
	p.client = made
	p.state = PoolState{Name: p.name, Err: &Error{"the store has not answered yet", "the store has not answered yet"}}
	s.Pools = append(s.Pools, p)
	s.Runners = append(s.Runners, made.Run, func(ctx context.Context) error { return s.pingUntilHealthy(ctx, p) })
	s.cfg.Figures.ShowFigures("pool", p.name, p)
}

// healthNote returns a remark about the pool that does not make the process unready; "": none.
func (p *Pool) healthNote() string {
	if note := p.mintingNote(); note != "" {
		return note
	}
	if slow := p.SlowServer(); slow != nil {
		return p.slowError(slow).ForCallers
	}
	if n := p.Stats().OpenBreakers; n > 0 {
		return output.Plural(n, "server") + " without an answer, only probed"
	}
	return ""
}

// mintingNote returns why there are no new credentials; "": there are.
func (p *Pool) mintingNote() string {
	for _, m := range p.minters {
		if note := m.note(time.Now()); note != "" {
			return note
		}
	}
	return ""
}

// outage returns which servers do not answer, as pings and calls tell; nil if none.
func (p *Pool) outage(st *PoolState) *Outage {
	stats := p.Stats()
	o := &Outage{p.labelInMessages, stats.SilentServers, max(stats.Servers, 1), stats.SilentSince}
	switch {
	case !st.HasAnswered:
		o.SilentServers, o.Since = o.Servers, time.Time{}
	case stats.SilentServers > 0:
	case st.Err != nil:
		o.SilentServers, o.Since = o.Servers, st.ChangedAt
	default:
		return nil
	}
	return o
}

// slowError returns the error of a server that answers later than the timeout.
func (p *Pool) slowError(e *remote.SlowError) *Error {
	class := fmt.Sprintf("%s answers in %s, %s is %s", p.labelInMessages, remote.InMilliseconds(e.PingTime),
		p.timeoutSetting, remote.InMilliseconds(e.Timeout))
	enough := (2*e.PingTime + 10*time.Millisecond).Truncate(10 * time.Millisecond)
	return &Error{class, fmt.Sprintf("%s: set it to %v or more (%s)", class, enough, e.Addr)}
}

// maxPauseBeforeAnswer is the longest pause between two pings before the first answer. Calls succeed as soon after the
// store is there, because that is also the longest pause between two probes of its breaker.
const maxPauseBeforeAnswer = 500 * time.Millisecond

// firstAnswerGrace is how long a store may leave pings after the start unanswered without a line of the log.
const firstAnswerGrace = 500 * time.Millisecond

// pingUntilHealthy pings p, and records whether it answers. It returns after the first answer unless alwaysPing is set.
func (s *Store) pingUntilHealthy(ctx context.Context, p *Pool) error {
	started, pause, wasUp := time.Now(), min(p.firstPingPause, maxPauseBeforeAnswer), false
	nextLog, logPause, nextCheck := started.Add(firstAnswerGrace), p.firstPingPause, started
	for {
		err := p.ping(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wasUp = wasUp || err == nil
		p.record(err)
		s.cfg.OnPing()
		switch {
		case err == nil && !p.alwaysPing:
			return nil
		case err == nil:
			pause = time.Second
		case wasUp:
			s.cfg.Log.Warnf("unhealthy: %v", err)
		default: // No ping of the store has succeeded yet.
			if p.startTimeout > 0 && time.Since(started) > p.startTimeout {
				return fmt.Errorf("REDIS_STARTUP_MAX_ELAPSED_TIME has passed: %w", err)
			}
			if now := time.Now(); now.After(nextLog) {
				if s.isAloneHealthy.Load() {
					s.cfg.Log.Warnf("%v; on_store_failure decides", err)
				} else {
					s.cfg.Log.Warnf("not ready: %v", err)
				}
				nextLog = now.Add(logPause)
				logPause = min(2*logPause, p.maxPingPause)
			}
			if now := time.Now(); now.After(nextCheck) {
				nextCheck = now.Add(tlsCheckInterval)
				s.adviseTLS(ctx, p)
			}
			pause = min(2*pause, p.maxPingPause, maxPauseBeforeAnswer)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		case <-ctx.Done():
			return nil
		}
	}
}

// record records the result of a ping.
func (p *Pool) record(err *Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if (p.state.Err == nil) != (err == nil) {
		p.state.ChangedAt = time.Now()
	}
	p.state.Err, p.state.HasAnswered = err, p.state.HasAnswered || err == nil
}

// lastPing returns what the last ping left, without a note and an outage.
func (p *Pool) lastPing() PoolState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// adviseTLS logs what to do if p does not answer because only one of the service and the store uses TLS.
func (s *Store) adviseTLS(ctx context.Context, p *Pool) {
	ctx, cancel := context.WithTimeout(ctx, p.pingTimeout)
	defer cancel()
	if advice := p.tlsCheck.advice(ctx); advice != "" {
		s.cfg.Log.Warnf("%s at %s", p.productName, advice)
	}
}

func (p *Pool) ping(ctx context.Context) *Error {
	ctx, cancel := context.WithTimeout(ctx, p.pingTimeout)
	defer cancel()
	err := p.Ping(ctx)
	if err == nil {
		return nil
	}
	if slow, isSlow := errors.AsType[*remote.SlowError](err); isSlow {
		return p.slowError(slow)
	}
	silent := p.labelInMessages + " does not answer"
	if note := p.mintingNote(); note != "" {
		silent += ": " + note
	}
	return &Error{silent, fmt.Sprintf("%s: %v", silent, err)}
}
