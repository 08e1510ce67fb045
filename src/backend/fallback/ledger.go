package fallback

import (
	"bytes"
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
)

// ledger knows what was charged here and not by the store: how much of it still
// counts, and where.
type ledger struct {
	forgotten atomic.Int64
	some      chan struct{} // something is owed

	mu      sync.Mutex    // guards what follows
	counts  *memory.Store // by entry.count; what is owed fades as it would in the store
	last    uint64        // the last entry.count
	entries map[string]*entry
	bytes   int64 // of the entries, about
	max     int64
	swept   time.Time
	name    []byte
	one     backend.Batch // room for a batch of one hit
	key     [8]byte       // of it
}

// entry is a counter of the store that lacks something.
type entry struct {
	name   string
	force  backend.Hit // what adds to it, with memory of its own; Amount is not set
	limit  algorithm.Limit
	share  algorithm.Limit // what the ledger counts by
	count  uint64          // what it counts under: another one after each payment
	refund uint64          // what is to be given back besides, of what the store charged
	until  time.Time       // from then on nothing is owed
	had    uint64          // what the store has, by the last look
	sent   uint64          // what it was sent when it had that, and did not answer; 0: nothing
}

// entryBytes is what an entry takes besides its key, which is there twice.
const entryBytes = 400

func entrySize(name int) int64 { return int64(2*name + entryBytes) }

func (e *entry) size() int64 { return entrySize(len(e.name)) }

func newLedger(maxBytes int64) (*ledger, error) {
	counts, err := memory.New(memory.Config{MaxBytes: maxBytes / 2})
	if err != nil {
		return nil, err
	}
	return &ledger{
		some: make(chan struct{}, 1), counts: counts, entries: make(map[string]*entry), max: maxBytes / 2,
		one: backend.Batch{Hits: make([]backend.Hit, 1), Verdicts: make([]backend.Verdict, 1)},
	}, nil
}

// instant is now; zero is the clock's.
func instant(now time.Time) time.Time {
	if now.IsZero() {
		return time.Now()
	}
	return now
}

func (l *ledger) len() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.entries))
}

// note remembers a hit on which v is the verdict here, where it was as here is.
func (l *ledger) note(h, here *backend.Hit, v *backend.Verdict, now time.Time) {
	switch {
	case h.Amount == 0, here.Op == algorithm.Look:
		return
	case here.Op != algorithm.Refund && !v.Charged:
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	clock := instant(now)
	e := l.entry(h, here.Limit, clock)
	if e == nil {
		l.forgotten.Add(1)
		return
	}
	op := algorithm.Force
	if here.Op == algorithm.Refund {
		op = algorithm.Refund
	}
	fades := l.take(e, op, h.Amount, now)
	until := clock.Add(fades.ResetAfter)
	if op == algorithm.Refund {
		e.refund = min(e.refund+h.Amount-(fades.Before-fades.After), algorithm.MaxAmount)
		if until = clock.Add(h.Limit.Period); h.Limit.Kind == algorithm.FixedWindow {
			until = clock.Add(v.ResetAfter)
		}
	}
	if until.After(e.until) {
		e.until = until
	}
	select {
	case l.some <- struct{}{}:
	default: // it was said
	}
}

// entry is that of the counter which h is on; nil if there is no room for it.
func (l *ledger) entry(h *backend.Hit, share *algorithm.Limit, now time.Time) *entry {
	l.name = appendName(l.name[:0], h)
	e := l.entries[string(l.name)]
	if e == nil {
		size := entrySize(len(l.name))
		if l.bytes+size > l.max {
			l.sweep(now)
		}
		if l.bytes+size > l.max {
			return nil
		}
		e = &entry{name: string(l.name), force: *h}
		e.force.Key = bytes.Clone(h.Key)
		l.last++
		e.count = l.last
		e.force.Op, e.force.Atomic, e.force.NoVeto, e.force.Fallback = algorithm.Force, false, false, backend.FallbackError
		l.entries[e.name] = e
		l.bytes += size
	}
	e.limit, e.share = *h.Limit, *share // another rule may have come
	e.force.Limit = &e.limit
	return e
}

// appendName appends what tells one counter of the store from another, whatever
// the store.
func appendName(dst []byte, h *backend.Hit) []byte {
	flags := byte(0)
	if h.Together {
		flags |= 1
	}
	if h.CountDown {
		flags |= 2
	}
	dst = append(dst, byte(h.Limit.Kind), flags)
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.Limit.Period))
	return append(dst, h.Key...)
}

// take does op to what is owed to e.
func (l *ledger) take(e *entry, op algorithm.Op, amount uint64, now time.Time) backend.Verdict {
	binary.BigEndian.PutUint64(l.key[:], e.count)
	l.one.Now = now
	l.one.Hits[0] = backend.Hit{Key: l.key[:], Limit: &e.share, Op: op, Amount: amount}
	_ = l.counts.Take(context.Background(), &l.one) // the hit is a good one, and memory does not wait
	l.one.Hits[0] = backend.Hit{}
	return l.one.Verdicts[0]
}

// sweep forgets what is not owed any more. It looks at all entries, so not more
// often than once a second.
func (l *ledger) sweep(now time.Time) {
	if now.Sub(l.swept).Abs() < time.Second {
		return
	}
	l.swept = now
	for _, e := range l.entries {
		if !e.until.After(now) {
			l.drop(e)
		}
	}
}

func (l *ledger) drop(e *entry) {
	delete(l.entries, e.name)
	l.bytes -= e.size()
}

// all are the counters that lack something, in no order.
func (l *ledger) all(now time.Time) []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(instant(now))
	return slices.Collect(maps.Values(l.entries))
}

// bill fills b with what some counters lack, at most two hits for each, and returns
// whose they are. Those that lack nothing any more are forgotten.
func (l *ledger) bill(entries []*entry, b *backend.Batch, now time.Time) (of []*entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clock := instant(now)
	b.Hits = b.Hits[:0]
	add := func(e *entry, op algorithm.Op, amount uint64) {
		h := e.force
		h.Op, h.Amount, h.Group = op, min(amount, algorithm.MaxAmount), uint16(len(b.Hits))
		limit := *h.Limit // that of the entry may change meanwhile
		h.Limit = &limit
		b.Hits = append(b.Hits, h)
		of = append(of, e)
	}
	for _, e := range entries {
		if l.entries[e.name] != e {
			continue // it faded meanwhile
		}
		owed := l.take(e, algorithm.Look, 0, now).Before
		past := !e.until.After(clock)
		if owed == 0 && (e.refund == 0 || past) {
			l.drop(e)
			continue
		}
		if e.refund > 0 && !past { // it came first, when nothing was owed
			add(e, algorithm.Refund, e.refund)
		}
		if owed > 0 {
			add(e, algorithm.Force, owed)
		}
	}
	b.Verdicts = make([]backend.Verdict, len(b.Hits))
	return of
}

// looked notes that the store has so much on e. When what it was sent before without an
// answer is there, or most of it, as limits fade, it is paid: a store whose answers
// come late would be sent the same each time. Others may have charged as much
// meanwhile; then it is forgotten.
func (l *ledger) looked(e *entry, has uint64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries[e.name] == e && e.sent > 0 && has > e.had+e.sent/2 {
		l.begin(e, e.sent, now)
	}
	e.had, e.sent = has, 0
}

// paid notes what the store took of a bill, and returns how many of its hits.
func (l *ledger) paid(of []*entry, b *backend.Batch) (taken int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range of {
		h := &b.Hits[i]
		switch {
		case b.Verdicts[i].Err == nil:
			taken++
		case h.Op == algorithm.Refund: // given twice it would let more pass than the limit
			l.forgotten.Add(1)
		default:
			e.sent = h.Amount
			continue
		}
		switch {
		case l.entries[e.name] != e: // it faded meanwhile
			continue
		case h.Op == algorithm.Refund:
			e.refund -= min(e.refund, h.Amount)
		default:
			l.begin(e, h.Amount, b.Now)
		}
		if e.refund == 0 && l.take(e, algorithm.Look, 0, b.Now).Before == 0 {
			l.drop(e)
		}
	}
	return taken
}

// begin counts what is owed to e anew, from what came after the payment. A refund
// would not do: a sliding window counter takes it from the last of its windows only.
func (l *ledger) begin(e *entry, payment uint64, now time.Time) {
	owed := l.take(e, algorithm.Look, 0, now).Before
	l.last++
	e.count = l.last
	if owed > payment {
		l.take(e, algorithm.Force, owed-payment, now)
	}
}
