package rules

import (
	"bytes"
	"context"
	"errors"
)

// MaxRegexWork is how much the regular expressions of one request may cost: the steps of each, see regexSteps, times
// the bytes that it is compared with. The worst expressions then take some 0.4 s of one core.
const MaxRegexWork = 50_000_000

// ErrTooMuchRegexWork says that a request needs more than MaxRegexWork.
var ErrTooMuchRegexWork = errors.New("the values take too long to compare with regular expressions")

const (
	// workBetweenLooks is the work after which a search asks whether its context has ended. A unit takes at most 8 ns.
	workBetweenLooks = 500_000
	// workOfDescriptor is about what a search costs without its patterns.
	workOfDescriptor = 2000
	// longText is the length from which on the comparison with a wildcard counts as work.
	longText = 4096
	// minRememberedWork is the work of a comparison whose result is worth a place in matchedValues.
	minRememberedWork = 10_000
	// maxMatchedValues is how many results are remembered.
	maxMatchedValues = 64
)

// searchBounds bounds the searches of one request. The zero value bounds nothing.
type searchBounds struct {
	ctx           context.Context
	regexWork     int // regexWork is the work of regular expressions so far.
	workSinceLook int // workSinceLook is the work since ctx was asked.
	err           error
	matched       []matchedValue // matched has the last results that took long. When it is full, the oldest makes room.
	oldestMatched int
}

// matchedValue is the result of the comparison of a value with a regexList.
type matchedValue struct {
	first *regexNode // first is the first of the list.
	value []byte
	node  *node
}

// Begin starts a request: its searches stop when ctx ends, or after MaxRegexWork. Before the first Begin nothing bounds
// them. The entries must stay as they are until the next Begin or Reset.
func (s *SearchScratch) Begin(ctx context.Context) {
	s.bounds.reset()
	s.bounds.ctx = ctx
}

// Err returns why searches since Begin have stopped: ErrTooMuchRegexWork or the error of the context. Then their results
// are not valid.
func (s *SearchScratch) Err() error { return s.bounds.err }

// reset removes the bounds and forgets the results, but keeps their memory.
func (b *searchBounds) reset() {
	clear(b.matched)
	*b = searchBounds{matched: b.matched[:0]}
}

// allows reports whether a search may do further work.
func (b *searchBounds) allows(work int) bool {
	if b.ctx == nil {
		return true
	}
	if b.workSinceLook += work; b.workSinceLook >= workBetweenLooks && b.err == nil {
		b.workSinceLook, b.err = 0, b.ctx.Err()
	}
	return b.err == nil
}

// allowsText reports whether a search may compare a text of that length with another wildcard.
func (b *searchBounds) allowsText(length int) bool { return length < longText || b.allows(length) }

// allowsRegex reports whether a search may compare the next regular expression.
func (b *searchBounds) allowsRegex(work int) bool {
	if b.regexWork += work; b.regexWork > MaxRegexWork && b.ctx != nil && b.err == nil {
		b.err = ErrTooMuchRegexWork
	}
	return b.allows(work)
}

// recall returns the result for a value that the list with this first expression was compared with before.
func (b *searchBounds) recall(first *regexNode, value []byte) (n *node, ok bool) {
	for i := range b.matched {
		if m := &b.matched[i]; m.first == first && bytes.Equal(m.value, value) {
			return m.node, true
		}
	}
	return nil, false
}

// remember keeps a result for recall.
func (b *searchBounds) remember(m matchedValue) {
	if b.ctx == nil {
		return
	}
	if len(b.matched) < maxMatchedValues {
		b.matched = append(b.matched, m)
		return
	}
	b.matched[b.oldestMatched] = m
	b.oldestMatched = (b.oldestMatched + 1) % maxMatchedValues
}
