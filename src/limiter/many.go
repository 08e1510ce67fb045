package limiter

import (
	"context"
	"time"
)

// Many holds independent requests, which CheckMany decides with one call of the store. The zero value holds none. A
// Many keeps its memory from one use to the next, so programs should pool it:
//
//	item := m.Add()
//	item.Err = decode(message, &item.Request) // once for each message
//	l.CheckMany(ctx, m)
//	for _, item := range m.Items() {
//		reply(&item.Answer, item.Err)
//	}
//	m.Reset(limit)
type Many struct {
	// Now is when the store decides the requests. The zero time means the store's own clock. CheckMany sets Request.Now of
	// all items to it.
	Now time.Time

	items []*Item // items[:used] are in use; Add returns the others next.
	used  int
	batch Batch
}

// Item is one request of a Many, and the decision on it.
type Item struct {
	Request Request
	Answer  Answer // valid until the Many is reset, and under the conditions of Check.
	Err     error  // what Check would return. CheckMany skips an item whose Err is set before.
}

// Add adds an item with an empty request and returns it. Its Descriptors have no elements, but may have capacity for
// some. The item is valid until Reset.
func (m *Many) Add() *Item {
	if m.used == len(m.items) {
		m.items = append(m.items, new(Item))
	}
	m.used++
	return m.items[m.used-1]
}

// Items returns all items, in the order of Add. The slice is valid until the next Add or Reset.
func (m *Many) Items() []*Item { return m.items[:m.used] }

// Batch returns the batch with the hits of all items.
func (m *Many) Batch() *Batch { return &m.batch }

// Reset removes all items with their references to requests and rules, and keeps their memory for the next ones. It
// frees the memory of each item that has room for more than limit charges or descriptors.
func (m *Many) Reset(limit int) {
	for _, it := range m.Items() {
		it.reset(limit)
	}
	if !m.batch.reset(limit * len(m.items)) {
		m.batch = Batch{}
	}
	m.Now, m.used = time.Time{}, 0
}

// reset removes the request and the decision. It frees the memory if that has room for more than limit charges or
// descriptors.
func (it *Item) reset(limit int) {
	descriptors := it.Request.Descriptors
	if !it.Answer.Reset(limit) || cap(descriptors) > limit {
		*it = Item{}
		return
	}
	clear(descriptors)
	it.Request, it.Err = Request{Descriptors: descriptors[:0]}, nil
}

// CheckMany decides the requests of m in their order with one call of the store, and sets Answer and Err of each item.
// It decides each request as Check would: a request sees what those before it charged, and an error concerns only its
// own item. If the deadline of ctx passes, all requests without an answer of the store fail.
//
// Check of requests in turn differs in one way: the over-limit cache learns from a batch only for later batches. Until
// then the store also decides, and counts, the other requests of the batch on a counter that has become full.
func (l *Limiter) CheckMany(ctx context.Context, m *Many) {
	l.PrepareMany(ctx, l.Rules(), m)
	l.AnswerMany(m, l.Take(ctx, &m.batch))
}
