package overlimit

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"ratelimit/src/algorithm"
)

// id is what an entry is found under: 128 bits of keyed hash over what makes a
// counter one of its own, which are its key and the kind and length of its
// window. Not the rule: a refund ends the entry of its counter whatever rule
// it comes with, and the entry of a rule that has changed makes room for the
// next.
type id [16]byte

// hasher hashes with keys of its own.
type hasher [2]maphash.Seed

func newHasher() hasher { return hasher{maphash.MakeSeed(), maphash.MakeSeed()} }

func (h *hasher) id(hit *algorithm.Hit) (id id) {
	type counter struct {
		key    [2]uint64
		period time.Duration
		kind   algorithm.Kind
	}
	c := counter{
		key:    [2]uint64{maphash.Bytes(h[0], hit.Key), maphash.Bytes(h[1], hit.Key)},
		period: hit.Limit.Period,
		kind:   hit.Limit.Kind,
	}
	binary.LittleEndian.PutUint64(id[:8], maphash.Comparable(h[0], c))
	binary.LittleEndian.PutUint64(id[8:], maphash.Comparable(h[1], c))
	return id
}

// rule tells the arithmetic of one rule from another's, by every field there
// is.
func (h *hasher) rule(l *algorithm.Limit) uint64 { return maphash.Comparable(h[0], *l) }

// entry says that a counter is full. It holds from the instant at which that
// was seen until the store's FullUntil, for the rule it was seen under.
type entry struct {
	since, until int64 // nanoseconds since the Unix epoch; since <= now < until
	count        uint64
	rule         uint64
}

const entryBytes = 32

func (e *entry) encode(b *[entryBytes]byte) {
	binary.LittleEndian.PutUint64(b[0:], uint64(e.since))
	binary.LittleEndian.PutUint64(b[8:], uint64(e.until))
	binary.LittleEndian.PutUint64(b[16:], e.count)
	binary.LittleEndian.PutUint64(b[24:], e.rule)
}

func decode(b []byte) entry {
	return entry{
		since: int64(binary.LittleEndian.Uint64(b[0:])),
		until: int64(binary.LittleEndian.Uint64(b[8:])),
		count: binary.LittleEndian.Uint64(b[16:]),
		rule:  binary.LittleEndian.Uint64(b[24:]),
	}
}

// refuses says whether e settles h, which is a charge or a look. The limit is
// full, so every unit is refused; two cases are left to the store while the
// count is no more than Max:
//
//   - A hit of nothing, which passes. Beyond Max it is over.
//   - A charge that counts although it is refused. It takes the count beyond
//     Max; from then on counting more changes no answer.
func (e *entry) refuses(h *algorithm.Hit) bool {
	if e.count > h.Limit.Max {
		return true
	}
	vetoes := h.Atomic && !h.NoVeto // then its refusal is not counted
	counts := h.Op == algorithm.Charge && h.Limit.CountBlocked && !vetoes
	return h.Amount > 0 && !counts
}

// verdict refuses h. A fixed window is empty when it is no longer full, so the
// wait is the same for every amount that can pass at all, and for the limit to
// be whole.
func (e *entry) verdict(h *algorithm.Hit, at int64) algorithm.Verdict {
	wait := time.Duration(e.until - at)
	v := algorithm.Verdict{
		Over:       true,
		Cached:     true,
		Before:     e.count,
		After:      e.count,
		RetryAfter: wait,
		ResetAfter: wait,
		FullUntil:  time.Unix(0, e.until),
	}
	if h.Amount > h.Limit.Max {
		v.RetryAfter = algorithm.Never
	}
	return v
}

// seconds is when freecache may forget the entry, by its own clock of whole
// seconds. It only frees memory: what holds is judged by since and until.
// Virtual time goes at a pace of its own, so there it is at least an hour; it
// is a month at most, as freecache adds it up in 32 bits.
func (e *entry) seconds(virtual bool) int {
	const hour, month = 60 * 60, 30 * 24 * 60 * 60
	n := (e.until - e.since + int64(time.Second) - 1) / int64(time.Second)
	if virtual {
		n = max(n, hour)
	}
	return int(min(n, month))
}
