package limiter

import (
	"context"
	"time"

	"ratelimit/src/backend"
)

// Many holds independent requests, which CheckMany decides with one call of the store. The zero value holds none. A Many keeps
// its memory from one use to the next, so programs should pool it:
//
//	item := m.Add()
//	item.Err = decode(message, &item.Request) // once for each message
//	l.CheckMany(ctx, m)
//	for _, item := range m.Items() {
//		reply(&item.Answer, item.Err)
//	}
//	m.Reset(limit)
type Many struct {
	// Now is when the store decides the requests. The zero time means the store's own clock. CheckMany sets Request.Now of all
	// items to it.
	Now time.Time

	items []*Item // items has the items that are in use, and behind them those that Add returns next.
	used  int     // used is how many of the first items are in use.
	batch backend.Batch
}

// Item is one request of a Many, and the decision on it.
type Item struct {
	Request Request
	// Answer is the decision on Request. It is valid until the Many is reset, and under the conditions of Check.
	Answer Answer
	// Err is the error that Check would return. If it is set before CheckMany, CheckMany skips the item.
	Err error
}

// Add adds an item with an empty request and returns it. Descriptors and CallerLimits have no elements, but may have capacity for some.
// The item is valid until Reset.
func (m *Many) Add() *Item {
	if m.used == len(m.items) {
		m.items = append(m.items, new(Item))
	}
	m.used++
	return m.items[m.used-1]
}

// Items returns all items, in the order of Add. The slice is valid until the next Add or Reset.
func (m *Many) Items() []*Item { return m.items[:m.used] }

// Reset removes all items with their references to requests and rules, and keeps their memory for the next ones. It frees the
// memory of each item that has room for more than limit charges or descriptors.
func (m *Many) Reset(limit int) {
	for _, it := range m.Items() {
		it.reset(limit)
	}
	clear(m.batch.Hits)
	clear(m.batch.Verdicts)
	m.batch = backend.Batch{Hits: m.batch.Hits[:0], Verdicts: m.batch.Verdicts[:0]}
	if cap(m.batch.Hits) > limit*len(m.items) {
		m.batch = backend.Batch{}
	}
	m.Now, m.used = time.Time{}, 0
}

// reset removes the request and the decision. It frees the memory if that has room for more than limit charges or descriptors.
func (it *Item) reset(limit int) {
	descriptors, limits := it.Request.Descriptors, it.Request.CallerLimits
	if !it.Answer.Reset(limit) || max(cap(descriptors), cap(limits)) > limit {
		*it = Item{}
		return
	}
	clear(descriptors)
	it.Request, it.Err = Request{Descriptors: descriptors[:0], CallerLimits: limits[:0]}, nil
}

// CheckMany decides the requests of m in their order with one call of the store, and sets Answer and Err of each item. It decides
// each request as Check would: a request sees what those before it charged, and an error concerns only its own item. If the
// deadline of ctx passes, all requests without an answer of the store fail.
//
// Check of requests in turn differs in one way: the over-limit cache learns from a batch only for later batches. Until then the
// store also decides, and counts, the other requests of the batch on a counter that has become full.
func (l *Limiter) CheckMany(ctx context.Context, m *Many) {
	sets, batch := l.inForce.Load(), &m.batch
	batch.Hits, batch.Verdicts, batch.Now, batch.DecidedAt = batch.Hits[:0], batch.Verdicts[:0], m.Now, 0
	for _, it := range m.Items() {
		if it.Err == nil {
			it.Request.Now = m.Now
			it.Err = l.addHits(ctx, &it.Request, &it.Answer, sets.live, batch)
			if it.Err == nil && sets.candidate != nil && len(it.Request.CallerLimits) == 0 {
				l.addCandidateHits(ctx, &it.Request, &it.Answer, sets.candidate)
			}
		}
	}
	err := l.take(ctx, batch)
	var times ruleTimes
	for _, it := range m.Items() {
		switch {
		case it.Err != nil:
		case err != nil && len(it.Answer.Charges) > 0:
			it.Err = err
		default:
			it.Err = l.completeAnswer(&it.Request, &it.Answer, false, &times)
		}
	}
	l.ruleTimes.add(times)
}
