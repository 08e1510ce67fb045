package notify

import (
	"context"
	"hash/maphash"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/rules"
)

// Config is the configuration of a Notifier.
type Config struct {
	Backend   backend.Backend // keeps the claims; required
	KeyPrefix string          // the first part of each key of a claim in the store
	// DefaultURL is the address for rules without one; empty for none. Variable returns the value of an environment
	// variable that a rule names as its address.
	DefaultURL string
	Variable   func(name string) string
	Keys       []Key  // sign each message; none: messages are not signed
	UserAgent  string // the header of that name
	// OnFailure is told about each message that was not delivered, and about the host that it was for. The error has no
	// other part of the address, which may be a secret.
	OnFailure func(host string, err error)
	// Pauses are those before the second and later attempts to deliver a message. Defaults to 1, 2, 4 and 8 s. Each is
	// varied by up to a half.
	Pauses []time.Duration
}

// maxFound is how many subjects wait for their claim. Each takes at most some 2 KB.
const maxFound = 1000

// seenSlots is the number of slots of Notifier.seen, a power of two: 512 KB.
const seenSlots = 1 << 16

// Notifier is a limiter.Recorder that sends webhooks.
type Notifier struct {
	cfg    Config
	sender *sender
	found  chan *reached
	// seen has hashes of subjects whose percentage was reached in their window. A hash replaces another one of its slot:
	// then the subject is claimed again, in vain. It is nil before the first one.
	seen    atomic.Pointer[[seenSlots]atomic.Uint64]
	seed    maphash.Seed
	dropped atomic.Uint64
}

// New returns a Notifier. It sends nothing before Run.
func New(cfg Config) *Notifier {
	if cfg.Pauses == nil {
		cfg.Pauses = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}
	}
	return &Notifier{cfg: cfg, sender: newSender(&cfg), found: make(chan *reached, maxFound), seed: maphash.MakeSeed()}
}

// Stats are the figures of a Notifier.
type Stats struct {
	Sent    uint64 // messages that were delivered
	Failed  uint64 // those that were not, after all attempts
	Dropped uint64 // subjects of which nobody was told, because too many were waiting
	Waiting int    // subjects and messages that wait now
}

// Stats returns the figures.
func (n *Notifier) Stats() Stats {
	return Stats{
		Sent: n.sender.sent.Load(), Failed: n.sender.failed.Load(),
		Dropped: n.dropped.Load() + n.sender.dropped.Load(), Waiting: len(n.found) + n.sender.waiting(),
	}
}

// reached says that a subject has reached a percentage of a limit.
type reached struct {
	Body       // without ID
	rule       *rules.Rule
	counterKey string
	threshold  int   // the index in rule.Notify.At
	windowEnd  int64 // the result of windowEnd
}

// Record implements limiter.Recorder. It allocates memory only for a subject that has reached a percentage.
func (n *Notifier) Record(req *limiter.Request, a *limiter.Answer) {
	for i := range a.Statuses {
		st := &a.Statuses[i]
		for j := range st.Charges {
			if c := &st.Charges[j]; c.Rule != nil && c.Rule.Notify != nil {
				n.recordCharge(req, a, st, c, i)
			}
		}
	}
}

// recordCharge finds out whether c, a charge of descriptor i, has reached a percentage, and the first time keeps it for
// a claim.
func (n *Notifier) recordCharge(req *limiter.Request, a *limiter.Answer, st *limiter.Status, c *limiter.Charge, i int) {
	v := c.Verdict
	if v.Err != nil || v.Cached || v.Fallback != backend.FallbackError || c.RequestedAmount == 0 ||
		c.Op != algorithm.Charge && c.Op != algorithm.Force {
		return
	}
	capacity := c.Algorithm.Capacity()
	used := capacity - min(capacity, v.Remaining)
	threshold := c.Rule.Notify.Reached(used, capacity)
	denied := v.Over && !v.WithinMinInterval
	if denied { // A hit may ask for more than what remains.
		threshold = len(c.Rule.Notify.At) - 1
	}
	if threshold < 0 {
		return
	}
	at := a.DecidedAt
	if at == 0 {
		at = time.Now().UnixNano()
	}
	end := windowEnd(&c.Rule.Limit, v, at)
	if !n.markSeen(c.CounterKey, end, threshold) {
		return
	}
	if len(n.found) == cap(n.found) {
		n.dropped.Add(1)
		return
	}
	entries := req.Descriptors[i].Entries
	if st.Match != nil {
		entries = st.Match.WithoutHold(entries)
	}
	b := Body{
		At: time.Unix(0, at).UTC(), Domain: c.Rule.Domain, Rule: c.Rule.FullName,
		Subject:   callertext.Descriptor(c.Rule.AppendCounterEntries(nil, entries)),
		Threshold: c.Rule.Notify.At[threshold], Used: used, Limit: capacity, LimitText: c.Rule.LimitText(),
		Denied: denied, Enforced: !c.InShadowMode() && !a.Shadowed,
	}
	b.Reset = b.At.Add(v.ResetAfter)
	r := &reached{b, c.Rule, string(c.CounterKey), threshold, end}
	select {
	case n.found <- r:
	default:
		n.dropped.Add(1)
	}
}

// windowEnd returns the end of the window of l in which v was decided, at the instant at. Limits without windows that
// all replicas know have those of their period.
func windowEnd(l *algorithm.Limit, v *backend.Verdict, at int64) int64 {
	if l.Kind == algorithm.FirstHitWindow && v.WindowEnd != 0 {
		return v.WindowEnd
	}
	if l.Kind == algorithm.FixedWindow {
		_, end := l.WindowBounds(at)
		return end
	}
	_, end := algorithm.WindowBounds(at, claimPeriod(l))
	return end
}

// markSeen marks a percentage of a counter, and all smaller ones, as reached in the window. It returns false if that
// is known already.
func (n *Notifier) markSeen(counterKey []byte, windowEnd int64, threshold int) bool {
	seen := n.seen.Load()
	if seen == nil {
		n.seen.CompareAndSwap(nil, new([seenSlots]atomic.Uint64))
		seen = n.seen.Load()
	}
	const odd = 0x9e3779b97f4a7c15
	base := maphash.Bytes(n.seed, counterKey) ^ uint64(windowEnd)*odd
	for i := threshold; i >= 0; i-- {
		hash := (base+uint64(i))*odd | 1 // 0 marks a slot that is free.
		slot := &seen[hash>>(64-16)]
		if slot.Load() == hash && i == threshold {
			return false
		}
		slot.Store(hash)
	}
	return true
}

// Run claims what Record has found, and sends messages, until ctx ends. Then it tries each message that waits once.
func (n *Notifier) Run(ctx context.Context) error {
	defer n.sender.finish()
	for ctx.Err() == nil {
		select {
		case r := <-n.found:
			n.claim(r)
		case <-ctx.Done():
		}
	}
	n.sender.hurry()
	for len(n.found) > 0 { // Nobody else takes from it.
		n.claim(<-n.found)
	}
	return nil
}
