package overrides

import (
	"cmp"
	"hash/maphash"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"
	"unique"

	"ratelimit/src/rules"
)

// entry is an override in a table. It is immutable once readers can find it.
type entry struct {
	hash    uint64
	subject string // the text of the pattern
	limit   *changes
	texts   unique.Handle[texts]
	until   int64 // in ns since the Unix epoch; 0 for none
	since   int64 // in ns since the Unix epoch
	version uint64
	next    *entry // the next entry of the bucket; nil for none
}

// texts are what many overrides have in common.
type texts struct{ rule, reason, who string }

func (e *entry) rule() string { return e.texts.Value().rule }

// Names reports whether the name of an override, Override.Rule, means the limit r: it is empty, or the name of the
// descriptor of r, or that and the name of r, or its number, if the descriptor has several limits.
func Names(name string, r *rules.Rule) bool {
	if name == "" || name == r.Descriptor.FullName {
		return true
	}
	ofLimit, isBelow := strings.CutPrefix(name, r.Descriptor.FullName)
	if !isBelow || ofLimit[0] != '.' {
		return false
	}
	isFirst := r.FullName == r.Descriptor.FullName
	return r.Name != "" && ofLimit[1:] == r.Name || isFirst && ofLimit == ".1" || !isFirst && name == r.FullName
}

// domainTable has the overrides of one domain. Requests read it without a lock. Writers hold Registry.mu.
type domainTable struct {
	lookups atomic.Pointer[lookups] // nil without overrides
	buckets atomic.Pointer[buckets]
	count   int // of entries; only writers use it
	exact   int // of entries with exact patterns; only writers use it
	// filtered is how many entries were put into the buckets; only writers use it.
	filtered int
}

// buckets have entries by their hashes.
type buckets struct {
	first []atomic.Pointer[entry] // the first entry of each bucket
	// filter has a bit for each hash that was ever in the buckets. Most subjects have no override, and need only read a
	// bit of this small table to know that.
	filter []atomic.Uint64
}

const (
	minBuckets          = 16 // a power of two
	filterBitsPerBucket = 16
)

func newBuckets(n int) *buckets {
	return &buckets{make([]atomic.Pointer[entry], n), make([]atomic.Uint64, n*filterBitsPerBucket/64)}
}

// of returns the bucket of a hash.
func (b *buckets) of(hash uint64) *atomic.Pointer[entry] {
	return &b.first[hash&uint64(len(b.first)-1)]
}

// filterBit returns the word of the filter and the bit in it that a hash has.
func (b *buckets) filterBit(hash uint64) (word *atomic.Uint64, bit uint64) {
	hash >>= 24
	return &b.filter[hash>>6&uint64(len(b.filter)-1)], 1 << (hash & 63)
}

// lookups says how overrides are looked up. It is immutable.
type lookups struct {
	hasExact bool    // there are exact patterns
	shapes   []shape // those of all other patterns, the most specific first
}

// shape is what patterns have in common that are looked up in the same way.
type shape struct {
	entries int // the number of entries whose values are whole
	prefix  int // the length of the start of the value behind them; -1 for MoreEnd
	count   int // the number of patterns
}

// maxShapes bounds the shapes of a domain, each of which costs a lookup.
const maxShapes = 64

// hashSeed makes hashes unpredictable for callers.
var hashSeed = maphash.MakeSeed()

// The last bits of a hash tell the ends of patterns apart.
const (
	exactSalt  = 0x9e3779b97f4a7c15
	prefixSalt = 0xc2b2ae3d27d4eb4f
	moreSalt   = 0x165667b19e3779f9
)

// addHash adds the value of an entry to the hash of those before.
func addHash(hash uint64, value []byte) uint64 {
	return bits.RotateLeft64(hash, 23)*exactSalt ^ maphash.Bytes(hashSeed, value)
}

func hashOfValues(entries []rules.Entry) (hash uint64) {
	for i := range entries {
		hash = addHash(hash, entries[i].Value)
	}
	return hash
}

// shapeOf returns the shape of a pattern that is not exact.
func shapeOf(p *Pattern) shape {
	if p.End == MoreEnd {
		return shape{entries: len(p.Entries), prefix: -1}
	}
	last := len(p.Entries) - 1
	return shape{entries: last, prefix: len(p.Entries[last].Value)}
}

// hash returns the hash of entries cut to the shape. ok is false if they are too short for it.
func (s *shape) hash(entries []rules.Entry) (hash uint64, ok bool) {
	if len(entries) < s.entries {
		return 0, false
	}
	hash = hashOfValues(entries[:s.entries])
	if s.prefix < 0 {
		return hash ^ moreSalt, true
	}
	if len(entries) == s.entries || len(entries[s.entries].Value) < s.prefix {
		return 0, false
	}
	return addHash(hash, entries[s.entries].Value[:s.prefix]) ^ prefixSalt, true
}

// hashOf returns the hash of a pattern.
func hashOf(p *Pattern) uint64 {
	if p.End == ExactEnd {
		return hashOfValues(p.Entries) ^ exactSalt
	}
	s := shapeOf(p)
	hash, _ := s.hash(p.Entries)
	return hash
}

// find returns the override for the limit r and the entries of its counter; nil for none. Of several, it is the exact
// one, or the one with the longest pattern, and of equal patterns the one that names the rule. now returns the time in
// ns since the Unix epoch.
func (t *domainTable) find(l *lookups, r *rules.Rule, entries []rules.Entry, now func() int64) *entry {
	if l.hasExact {
		hash := hashOfValues(entries) ^ exactSalt
		if e := t.bucket(hash); e != nil {
			if e = e.best(hash, r, Pattern{Entries: entries}, now); e != nil {
				return e
			}
		}
	}
	for i := range l.shapes {
		s := &l.shapes[i]
		hash, ok := s.hash(entries)
		if !ok {
			continue
		}
		if e := t.bucket(hash); e != nil {
			if e = e.bestOfShape(hash, r, s, entries, now); e != nil {
				return e
			}
		}
	}
	return nil
}

// bucket returns the first entry that may have a hash; nil for none.
func (t *domainTable) bucket(hash uint64) *entry {
	b := t.buckets.Load()
	if word, bit := b.filterBit(hash); word.Load()&bit == 0 {
		return nil
	}
	return b.of(hash).Load()
}

// bestOfShape is best for the pattern of the shape s that names entries.
func (e *entry) bestOfShape(hash uint64, r *rules.Rule, s *shape, entries []rules.Entry, now func() int64) *entry {
	if s.prefix < 0 {
		return e.best(hash, r, Pattern{entries[:s.entries], MoreEnd}, now)
	}
	var list [maxPatternEntries]rules.Entry
	n := copy(list[:], entries[:s.entries+1])
	list[n-1].Value = list[n-1].Value[:s.prefix]
	return e.best(hash, r, Pattern{list[:n], PrefixEnd}, now)
}

// best returns the first of e and those behind it that is for r and the pattern, and has not ended; one that names the
// rule before others.
func (e *entry) best(hash uint64, r *rules.Rule, p Pattern, now func() int64) (best *entry) {
	var buffer [256]byte
	var subject []byte
	for ; e != nil; e = e.next {
		if e.hash != hash || !Names(e.rule(), r) {
			continue
		}
		if subject == nil {
			subject = p.appendText(buffer[:0])
		}
		switch {
		case e.subject != string(subject), e.until > 0 && e.until <= now():
		case best == nil, best.rule() == "":
			best = e
		}
	}
	return best
}

// put adds e for the pattern p, or replaces the entry with its subject and rule, which it returns; nil for none.
func (t *domainTable) put(p *Pattern, e *entry) (old *entry) {
	e.hash = hashOf(p)
	t.grow()
	old = t.replace(e.hash, e.subject, e.rule(), e)
	if old == nil {
		t.count++
		t.countPattern(p, 1)
	}
	return old
}

// remove removes the entry with a pattern and a rule, and returns it; nil for none.
func (t *domainTable) remove(p *Pattern, rule string) (old *entry) {
	if t.count == 0 {
		return nil
	}
	old = t.replace(hashOf(p), p.String(), rule, nil)
	if old != nil {
		t.count--
		t.countPattern(p, -1)
	}
	return old
}

// replace puts e, if it is not nil, into its bucket, in place of the entry with the subject and the rule.
func (t *domainTable) replace(hash uint64, subject, rule string, e *entry) (old *entry) {
	b := t.buckets.Load()
	bucket := b.of(hash)
	chain, old := bucket.Load().without(hash, subject, rule)
	if e != nil {
		e.next = chain
		chain = e
		word, bit := b.filterBit(hash)
		word.Or(bit)
		t.filtered++
	}
	bucket.Store(chain)
	return old
}

// without returns the entries from e on without that of a subject and a rule. It copies those before it, which readers
// may have.
func (e *entry) without(hash uint64, subject, rule string) (rest, old *entry) {
	switch {
	case e == nil:
		return nil, nil
	case e.hash == hash && e.subject == subject && e.rule() == rule:
		return e.next, e
	}
	rest, old = e.next.without(hash, subject, rule)
	if old == nil {
		return e, nil
	}
	copied := *e
	copied.next = rest
	return &copied, old
}

// grow makes more buckets if there are as many entries as buckets, and a new filter if most of its hashes are gone.
func (t *domainTable) grow() {
	old, size := t.buckets.Load(), minBuckets
	if old != nil {
		if size = len(old.first); t.count < size && t.filtered < 2*size {
			return
		}
		if t.count >= size/2 {
			size *= 2
		}
	}
	b := newBuckets(size)
	t.filtered = 0
	for e := range t.all {
		copied := *e
		bucket := b.of(e.hash)
		copied.next = bucket.Load()
		bucket.Store(&copied)
		word, bit := b.filterBit(e.hash)
		word.Or(bit)
		t.filtered++
	}
	t.buckets.Store(b)
}

// countPattern adds n, which is 1 or -1, to the number of patterns like p.
func (t *domainTable) countPattern(p *Pattern, n int) {
	var l lookups
	if now := t.lookups.Load(); now != nil {
		l = *now
	}
	if p.End == ExactEnd {
		t.exact += n
		if l.hasExact == (t.exact > 0) {
			return
		}
		l.hasExact = t.exact > 0
	} else {
		l.shapes = countShape(l.shapes, shapeOf(p), n)
	}
	if !l.hasExact && len(l.shapes) == 0 {
		t.lookups.Store(nil)
		return
	}
	t.lookups.Store(&l)
}

// countShape returns a copy of shapes with n more patterns of the shape s.
func countShape(shapes []shape, s shape, n int) []shape {
	shapes = slices.Clone(shapes)
	i := slices.IndexFunc(shapes, s.isLike)
	if i < 0 {
		s.count = n
		shapes = append(shapes, s)
		slices.SortFunc(shapes, func(a, b shape) int {
			return cmp.Or(cmp.Compare(b.entries, a.entries), cmp.Compare(b.prefix, a.prefix))
		})
		return shapes
	}
	if shapes[i].count += n; shapes[i].count == 0 {
		return slices.Delete(shapes, i, i+1)
	}
	return shapes
}

// isLike reports whether patterns of both shapes are looked up in the same way.
func (s shape) isLike(other shape) bool {
	return s.entries == other.entries && s.prefix == other.prefix
}

// all calls yield with each entry.
func (t *domainTable) all(yield func(*entry) bool) {
	b := t.buckets.Load()
	if b == nil {
		return
	}
	for i := range b.first {
		for e := b.first[i].Load(); e != nil; e = e.next {
			if !yield(e) {
				return
			}
		}
	}
}

// get returns the entry of a pattern and a rule; nil for none.
func (t *domainTable) get(p *Pattern, rule string) *entry {
	if t.count == 0 {
		return nil
	}
	hash, subject := hashOf(p), p.String()
	for e := t.bucket(hash); e != nil; e = e.next {
		if e.hash == hash && e.subject == subject && e.rule() == rule {
			return e
		}
	}
	return nil
}
