package credentials

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Fetch returns a new value, and when it expires: zero if that is unknown.
type Fetch[T any] func(ctx context.Context) (value T, expires time.Time, err error)

// Report says how the last Fetch ended.
type Report struct {
	Err error // nil if it returned a value
	// Left is true if there still is a value that may be used, until Ends. A zero Ends is unknown.
	Left bool
	Ends time.Time
}

// Keeper keeps a value that expires. It fetches the next one after half of the life, and keeps the last one until its
// end while that fails. The pause between two attempts grows, and each is random, so that replicas do not act at once.
type Keeper[T any] struct {
	fetch  Fetch[T]
	report func(Report)
	wake   chan struct{} // has an element when a value is wanted before its time

	mu        sync.Mutex // guards the fields below
	value     T
	has       bool // a value was fetched
	fetchedAt time.Time
	expires   time.Time     // of value; zero if unknown
	refused   bool          // a server refused value
	err       error         // of the last attempt
	failures  int           // attempts in a row that failed, or whose value was refused
	soonest   time.Time     // when the next attempt may begin
	due       time.Time     // when it begins if nothing wants it sooner
	attempted chan struct{} // closed and replaced after each attempt
}

const (
	// fetchTimeout bounds one Fetch.
	fetchTimeout = 10 * time.Second
	// minFetchPause is the least time between two attempts. A value of unknown life is as old at most when a new
	// connection uses it.
	minFetchPause = 500 * time.Millisecond
	maxFetchPause = 30 * time.Second
	// longestWait is the time between two attempts for a value of unknown life that nothing asks for.
	longestWait = 24 * time.Hour
)

// NewKeeper returns a Keeper without a value. It calls report, if not nil, after each attempt, outside of its locks.
func NewKeeper[T any](fetch Fetch[T], report func(Report)) *Keeper[T] {
	if report == nil {
		report = func(Report) {}
	}
	return &Keeper[T]{fetch: fetch, report: report, wake: make(chan struct{}, 1), attempted: make(chan struct{})}
}

// Run fetches values until ctx ends.
func (k *Keeper[T]) Run(ctx context.Context) {
	for ctx.Err() == nil {
		k.attempt(ctx)
		k.mu.Lock()
		due, soonest := k.due, k.soonest
		k.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(due)):
		case <-k.wake:
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(soonest)):
			}
		}
	}
}

func (k *Keeper[T]) attempt(ctx context.Context) {
	fetchCtx, cancel := context.WithTimeout(ctx, fetchTimeout)
	value, expires, err := k.fetch(fetchCtx)
	cancel()
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	if err == nil && !expires.IsZero() && !expires.After(now) {
		err = fmt.Errorf("what it gave expired at %s, %v ago: check the clock of this host and what gives it",
			expires.UTC().Format(time.RFC3339), now.Sub(expires).Round(time.Second))
	}
	k.mu.Lock()
	k.record(now, value, expires, err)
	report := Report{Err: err, Left: k.isUsable(now), Ends: k.expires}
	select {
	case <-k.wake: // This attempt is what was wanted.
	default:
	}
	close(k.attempted)
	k.attempted = make(chan struct{})
	k.mu.Unlock()
	k.report(report)
}

// record notes the end of an attempt, and when the next one comes. The caller holds mu.
func (k *Keeper[T]) record(now time.Time, value T, expires time.Time, err error) {
	k.err = err
	if err != nil {
		k.failures++
		k.soonest = now.Add(k.backoff())
		k.due = k.soonest
		return
	}
	if !k.refused {
		k.failures = 0
	}
	k.value, k.has, k.refused, k.fetchedAt, k.expires = value, true, false, now, expires
	k.soonest = now.Add(max(minFetchPause, k.backoff()))
	k.due = now.Add(longestWait)
	if !expires.IsZero() {
		half := expires.Sub(now) / 2
		k.due = now.Add(max(half-half/10+rand.N(half/5+1), minFetchPause))
	}
}

// backoff returns the pause after the failures in a row, half of it random. The caller holds mu.
func (k *Keeper[T]) backoff() time.Duration {
	if k.failures == 0 {
		return 0
	}
	pause := min(minFetchPause<<min(k.failures-1, 10), maxFetchPause)
	return pause/2 + rand.N(pause/2+1)
}

// isUsable reports whether the value has not expired. The caller holds mu.
func (k *Keeper[T]) isUsable(now time.Time) bool {
	return k.has && (k.expires.IsZero() || now.Before(k.expires))
}

// patience returns for how long a new connection, whose ctx it gets, waits for a newer value. It is 0 if the value may
// be used as it is. If it was refused or is of unknown life, an attempt gets half of the time, unless the last failed.
// The caller holds mu.
func (k *Keeper[T]) patience(ctx context.Context, now time.Time) time.Duration {
	left := longestWait
	if deadline, ok := ctx.Deadline(); ok {
		left = deadline.Sub(now)
	}
	isStale := k.refused || k.expires.IsZero() && now.Sub(k.fetchedAt) >= minFetchPause
	switch {
	case !k.isUsable(now) && (k.err == nil || !now.Before(k.soonest)):
		return left
	case k.isUsable(now) && isStale && k.err == nil:
		return left / 2
	}
	return 0
}

// Get returns the value and when it expires. Without one it waits for an attempt to fetch one until ctx ends, but not
// while a failed attempt is to be repeated only later. For another value than one that was refused, or that is of
// unknown life and not new, it waits for a while.
func (k *Keeper[T]) Get(ctx context.Context) (value T, expires time.Time, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if patience := k.patience(ctx, time.Now()); patience > 0 {
		attempted := k.attempted
		k.want()
		k.mu.Unlock()
		select {
		case <-attempted:
		case <-time.After(patience):
		case <-ctx.Done():
		}
		k.mu.Lock()
	}
	if k.isUsable(time.Now()) {
		return k.value, k.expires, nil
	}
	return value, time.Time{}, cmp.Or(k.err, errNotYet)
}

// errNotYet is the error of a Get whose context ended during the first attempt.
var errNotYet = errors.New("there is none yet")

// Peek returns the value if it has not expired. It does not wait, but makes Run fetch another one soon if it has.
func (k *Keeper[T]) Peek() (value T, expires time.Time, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); k.isUsable(now) {
		return k.value, k.expires, true
	}
	k.want()
	return value, time.Time{}, false
}

// Refused says that a server refused the value. Another one is fetched soon, the later the more often that happens in a
// row. Servers may refuse the value before this one a moment after this one was fetched.
func (k *Keeper[T]) Refused() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); k.has && !k.refused && now.Sub(k.fetchedAt) >= minFetchPause {
		k.refused = true
		if k.failures++; k.failures > 1 {
			k.soonest = now.Add(k.backoff())
		}
		k.want()
	}
}

// want makes Run fetch a value as soon as it may.
func (k *Keeper[T]) want() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}
