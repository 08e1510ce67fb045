package rules

import (
	"bytes"
	"context"
	"errors"
)

// SearchScratch is memory that FindRule and Rule.IsEnforced keep for their next call. Its zero value is ready to use.
// Only a Matcher uses its fields.
type SearchScratch struct {
	Canaries       []*Match // FindRule appends to them; the caller removes them
	ValuesBySlot   [][]byte // the values that an ordered list compares
	BytesOfValues  int      // the length of ValuesBySlot together
	Bounds         SearchBounds
	joinedEntry    []byte  // the last result of JoinEntry
	counterName    []byte  // the name of a counter that Rule.IsEnforced hashes
	counterEntries []Entry // the last result of CounterEntries
	derivedValues  []byte  // values that counterEntries refer to
}

// JoinEntry returns an entry in the form "key_value". The next call overwrites the result.
func (s *SearchScratch) JoinEntry(e *Entry) []byte {
	s.joinedEntry = append(append(append(s.joinedEntry[:0], e.Key...), '_'), e.Value...)
	return s.joinedEntry
}

// Reset forgets the last request. It frees each buffer that is larger than maxBytes.
func (s *SearchScratch) Reset(maxBytes int) {
	const sliceBytes = 24 // A []byte without its content takes 24 bytes.
	clear(s.Canaries)
	clear(s.ValuesBySlot[:cap(s.ValuesBySlot)])
	clear(s.counterEntries[:cap(s.counterEntries)])
	s.Canaries = s.Canaries[:0]
	s.Bounds.reset()
	for _, buffer := range []*[]byte{&s.joinedEntry, &s.counterName, &s.derivedValues} {
		if cap(*buffer) > maxBytes {
			*buffer = nil
		}
	}
	if cap(s.counterEntries) > maxBytes/(2*sliceBytes) {
		s.counterEntries = nil
	}
	if cap(s.ValuesBySlot) > maxBytes/sliceBytes {
		s.ValuesBySlot = nil
	}
}

// MaxRegexWork is how much the regular expressions of one request may cost: the steps of each, see regexSteps, times
// the bytes that it is compared with. The worst expressions then take some 0.4 s of one core. An explanation charges
// its other comparisons to the same budget.
const MaxRegexWork = 50_000_000

// ErrTooMuchRegexWork says that a request needs more than MaxRegexWork; ErrTooManyComparisons, that its explanation
// does.
var (
	ErrTooMuchRegexWork   = errors.New("the values take too long to compare with regular expressions")
	ErrTooManyComparisons = errors.New("the values take too long to compare with all rules")
)

const (
	// workBetweenLooks is the work after which a search asks whether its context has ended. A unit takes at most 8 ns.
	workBetweenLooks = 500_000
	// workOfDescriptor is about what a search costs without its patterns.
	workOfDescriptor = 2000
	// longText is the length from which on the comparison with a wildcard counts as work.
	longText = 4096
	// workOfComparison is what the comparison of a short text costs an explanation. Each bytesPerWork bytes cost another
	// unit.
	workOfComparison, bytesPerWork = 4, 16
	// minRememberedWork is the work of a comparison whose result is worth a place in matchedValues.
	minRememberedWork = 10_000
	// maxMatchedValues is how many results are remembered.
	maxMatchedValues = 64
)

// SearchBounds bounds the searches of one request. The zero value bounds nothing.
type SearchBounds struct {
	ctx           context.Context
	isExplanation bool // set by BeginExplanation
	regexWork     int  // the work of regular expressions so far
	workSinceLook int  // the work since ctx was asked
	err           error
	matched       []matchedValue // the last results that took long. The oldest makes room when it is full
	oldestMatched int
}

// matchedValue is the result of a comparison of a value with a list of regular expressions.
type matchedValue struct {
	list   any // identifies the list.
	value  []byte
	result any
}

// Begin starts a request: its searches stop when ctx ends, or after MaxRegexWork. Before the first Begin nothing bounds
// them. The entries must stay as they are until the next Begin or Reset.
func (s *SearchScratch) Begin(ctx context.Context) {
	s.Bounds.reset()
	s.Bounds.ctx = ctx
}

// BeginExplanation is Begin for searches that compare more than FindRule does: each of their comparisons counts.
func (s *SearchScratch) BeginExplanation(ctx context.Context) {
	s.Begin(ctx)
	s.Bounds.isExplanation = true
}

// Err returns why searches since Begin have stopped: ErrTooMuchRegexWork, ErrTooManyComparisons or the error of the
// context. Then their results are not valid.
func (s *SearchScratch) Err() error { return s.Bounds.err }

// reset removes the bounds and forgets the results, but keeps their memory.
func (b *SearchBounds) reset() {
	clear(b.matched)
	*b = SearchBounds{matched: b.matched[:0]}
}

// Allows reports whether a search may do further work.
func (b *SearchBounds) Allows(work int) bool {
	if b.ctx == nil {
		return true
	}
	if b.workSinceLook += work; b.workSinceLook >= workBetweenLooks && b.err == nil {
		b.workSinceLook, b.err = 0, b.ctx.Err()
	}
	return b.err == nil
}

// AllowsText reports whether a search may compare a text of that length with another descriptor or rule.
func (b *SearchBounds) AllowsText(length int) bool {
	if b.isExplanation {
		return b.AllowsRegex(workOfComparison + length/bytesPerWork)
	}
	return length < longText || b.Allows(length)
}

// AllowsRegex reports whether a search may compare the next regular expression.
func (b *SearchBounds) AllowsRegex(work int) bool {
	if b.regexWork += work; b.regexWork > MaxRegexWork && b.ctx != nil && b.err == nil {
		if b.err = ErrTooMuchRegexWork; b.isExplanation {
			b.err = ErrTooManyComparisons
		}
	}
	return b.Allows(work)
}

// RegexWork returns the work of regular expressions so far.
func (b *SearchBounds) RegexWork() int { return b.regexWork }

// Recall returns the result that Remember kept for a list and a value.
func (b *SearchBounds) Recall(list any, value []byte) (result any, ok bool) {
	for i := range b.matched {
		if m := &b.matched[i]; m.list == list && bytes.Equal(m.value, value) {
			return m.result, true
		}
	}
	return nil, false
}

// Remember keeps the result of comparing a value with a list, if that took long. before is RegexWork before it. list
// and result are pointers, so that nothing is allocated for them.
func (b *SearchBounds) Remember(list any, value []byte, result any, before int) {
	if b.ctx == nil || b.regexWork-before < minRememberedWork {
		return
	}
	m := matchedValue{list, value, result}
	if len(b.matched) < maxMatchedValues {
		b.matched = append(b.matched, m)
		return
	}
	b.matched[b.oldestMatched] = m
	b.oldestMatched = (b.oldestMatched + 1) % maxMatchedValues
}
