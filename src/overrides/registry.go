package overrides

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
	"unique"

	"ratelimit/src/rules"
)

// Registry has the overrides that this process knows. It follows a Store while Run runs.
type Registry struct {
	cfg    Config
	copier copier

	mu       sync.Mutex // held while overrides are put in force; requests never take it
	domains  map[string]*domainTable
	changes  map[Change]*changes // those that overrides have
	count    int                 // of all overrides
	sum      uint64              // of their versions, modulo SumModulus
	commits  uint64              // the number of Commit calls that have returned
	position uint64              // that of the last Delta
	epoch    uint64              // that of the last Delta, or of the first Commit
	highest  uint64              // the greatest version that the store had
	known    uint64              // the greatest version that was ever known
	// isIncomplete says that the store lacks overrides that it lost, because they could not be stored again.
	isIncomplete bool
	readAt       time.Time // when the store was read last; zero for never
	failure      error     // why the store could not be followed last; nil if it could
	failures     uint64    // the number of reads that failed
}

// Config configures a Registry. Store and MaxOverrides are required.
type Config struct {
	Store        Store
	MaxOverrides int // the most overrides that the store may have
	// Now returns the time. Defaults to time.Now.
	Now func() time.Time
	// OnState is called when the store does not answer any more, with the reason, and with nil when it answers again.
	OnState func(err error)
	// OnRestored is called after the store had lost overrides that this process knew, and got n of them again.
	OnRestored func(n int)
}

// ErrTooMany says that the store has as many overrides as it may have.
var ErrTooMany = errors.New("there are too many overrides: remove some, or use a pattern")

// New returns a Registry without overrides.
func New(cfg Config) *Registry {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.OnState == nil {
		cfg.OnState = func(error) {}
	}
	if cfg.OnRestored == nil {
		cfg.OnRestored = func(int) {}
	}
	return &Registry{cfg: cfg, domains: make(map[string]*domainTable), changes: make(map[Change]*changes)}
}

// Over returns a copy of set whose limits are replaced by those of overrides, now and later.
func (g *Registry) Over(set *rules.Set) *rules.Set {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.changes { // The copies are those of older rules.
		g.copier.forget(c)
	}
	return set.Adjusted(func(d *rules.Domain) rules.Adjuster {
		return &domainAdjuster{d.Name, g.table(d.Name), &g.copier, g.nanos}
	})
}

func (g *Registry) nanos() int64 { return g.cfg.Now().UnixNano() }

// table returns the table of a domain. g.mu is held.
func (g *Registry) table(domain string) *domainTable {
	t := g.domains[domain]
	if t == nil {
		t = new(domainTable)
		g.domains[domain] = t
	}
	return t
}

// Commit makes the edits in the store, and puts them in force here. Other replicas learn of them when they read the
// store next. Edits of overrides must be Canonical.
func (g *Registry) Commit(ctx context.Context, edits []Edit) ([]Result, error) {
	if err := g.checkShapes(edits); err != nil {
		return nil, err
	}
	g.mu.Lock()
	limits := Limits{Now: g.cfg.Now(), MaxKept: g.cfg.MaxOverrides, Known: g.known}
	g.mu.Unlock()
	results, epoch, err := g.cfg.Store.Commit(ctx, edits, limits)
	if err != nil {
		return nil, fmt.Errorf("overrides: %w", err)
	}
	d := &Delta{}
	for i, e := range edits {
		switch {
		case e.Remove:
			d.Removed = append(d.Removed, e.ID())
		case results[i].Version > 0:
			d.Set = append(d.Set, Versioned{e.Override, results[i].Version})
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.commits++
	if g.epoch == 0 { // The store had nothing when it was read.
		g.epoch = epoch
	}
	g.use(d, false)
	return results, nil
}

// checkShapes returns an error if the patterns of edits make lookups too slow.
func (g *Registry) checkShapes(edits []Edit) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range edits {
		t, known := g.domains[e.Domain]
		if e.Remove || !known {
			continue
		}
		p, err := e.parse()
		if err != nil {
			return err
		}
		now := t.lookups.Load()
		if p.pattern.End == ExactEnd || now == nil || len(now.shapes) < maxShapes {
			continue
		}
		if !slices.ContainsFunc(now.shapes, shapeOf(&p.pattern).isLike) {
			return fmt.Errorf("domain %s has patterns of %d lengths, which is the most: use a length that another pattern has",
				e.Domain, maxShapes)
		}
	}
	return nil
}

// use puts a delta in force. Unless isAll is set, which says that no newer change is known here, overrides with greater
// versions stay. g.mu is held.
func (g *Registry) use(d *Delta, isAll bool) {
	removed := slices.Clone(d.Removed)
	if d.Whole {
		g.missingIn(d, func(o Override, _ uint64) { removed = append(removed, o.ID()) })
	}
	for _, id := range removed {
		g.remove(id)
	}
	for _, v := range d.Set {
		p, err := v.parse()
		if err != nil { // Another version of this program has written it.
			continue
		}
		t := g.table(v.Domain)
		if old := t.get(&p.pattern, v.Rule); old != nil && old.version >= v.Version && !isAll {
			continue
		}
		g.release(t.put(&p.pattern, g.newEntry(&p, v.Version)))
	}
}

// newEntry returns the entry of p. g.mu is held.
func (g *Registry) newEntry(p *parsed, version uint64) *entry {
	e := &entry{
		subject: p.Subject, limit: g.changes[p.change], version: version, since: p.Since.UnixNano(),
		texts: unique.Make(texts{p.Rule, p.Reason, p.Who}),
	}
	if e.limit == nil {
		e.limit = &changes{Change: p.change}
		g.changes[p.change] = e.limit
	}
	if !p.Until.IsZero() {
		e.until = p.Until.UnixNano()
	}
	e.limit.uses++
	g.count++
	g.highest, g.known = max(g.highest, version), max(g.known, version)
	g.sum = (g.sum + version) % SumModulus
	return e
}

// release tells that e is not in a table any more; nil is none. g.mu is held.
func (g *Registry) release(e *entry) {
	if e == nil {
		return
	}
	g.count--
	g.sum = (g.sum + SumModulus - e.version%SumModulus) % SumModulus
	if e.limit.uses--; e.limit.uses == 0 {
		g.copier.forget(e.limit)
		delete(g.changes, e.limit.Change)
	}
}

// remove removes the override with the ID. g.mu is held.
func (g *Registry) remove(id ID) {
	if p, err := ParsePattern(id.Subject); err == nil {
		g.release(g.table(id.Domain).remove(&p, id.Rule))
	}
}

// missingIn calls yield with each override that is known and not in d, a whole Delta, and its version. g.mu is held.
func (g *Registry) missingIn(d *Delta, yield func(o Override, version uint64)) {
	kept := make(map[ID]bool, len(d.Set))
	for i := range d.Set {
		kept[d.Set[i].ID()] = true
	}
	for domain, t := range g.domains {
		for e := range t.all {
			if !kept[ID{domain, e.rule(), e.subject}] {
				yield(e.override(domain), e.version)
			}
		}
	}
}

// Run follows the store until ctx ends.
func (g *Registry) Run(ctx context.Context) error {
	pause := g.cfg.Store.Pause()
	for {
		more := g.follow(ctx)
		g.mu.Lock()
		done := pause == 0 && g.failure == nil
		g.mu.Unlock()
		wait := max(pause, minRetryPause)
		switch {
		case more:
			continue
		case done:
			wait = cleanPause
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
		g.removeEnded(ctx)
	}
}

const (
	minRetryPause = 100 * time.Millisecond
	// cleanPause is how often ended overrides are searched that nothing else removes.
	cleanPause = time.Minute
)

// follow reads the store once. more says that there is more to read.
func (g *Registry) follow(ctx context.Context) (more bool) {
	g.mu.Lock()
	since, commits := g.position, g.commits
	g.mu.Unlock()
	d, err := g.cfg.Store.Read(ctx, since)
	if ctx.Err() != nil {
		return false
	}
	if err == nil {
		var lost []Edit
		lost, more = g.learn(d, commits)
		err = g.restore(ctx, lost)
	}
	g.setFailure(err)
	return more
}

// setFailure sets why the store cannot be read; nil if it can.
func (g *Registry) setFailure(err error) {
	g.mu.Lock()
	isNew := (err == nil) != (g.failure == nil)
	if g.failure = err; err == nil {
		g.readAt = g.cfg.Now()
	} else {
		g.failures++
	}
	g.mu.Unlock()
	if isNew {
		g.cfg.OnState(err)
	}
}

// learn puts d in force, which was read after as many commits. It returns the overrides that the store has lost. more
// says that there is more to read.
func (g *Registry) learn(d *Delta, commits uint64) (lost []Edit, more bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	since := g.position
	if !d.Whole && d.Epoch != g.epoch {
		g.position = 0
		return nil, true
	}
	isAll := d.Whole && g.commits == commits
	if d.Whole && (g.isIncomplete || d.Epoch != g.epoch || d.Position < g.highest) { // The store has lost changes.
		if lost = g.lostBy(d); len(lost) > 0 {
			d.Whole = false // They stay in force here.
		}
	}
	if isAll || d.Whole {
		g.highest = 0
	}
	g.highest, g.known = max(g.highest, d.Position), max(g.known, d.Position)
	g.use(d, isAll)
	g.position, g.epoch = d.Position, d.Epoch
	if !d.More && g.commits == commits && (g.count != d.Count || g.sum != d.Sum) {
		// What is known here is not what the store has: perhaps a failover has lost some changes.
		g.position = 0
		return lost, since != 0
	}
	return lost, d.More
}

// lostBy returns the overrides that the store of d, a whole Delta, has lost.
func (g *Registry) lostBy(d *Delta) (lost []Edit) {
	now := g.cfg.Now()
	g.missingIn(d, func(o Override, version uint64) {
		if o.Until.IsZero() || o.Until.After(now) {
			lost = append(lost, Edit{Override: o, OnlyAbsent: true, Known: version})
		}
	})
	return lost
}

// maxRestored is how many overrides are stored again in one step.
const maxRestored = 500

// restore stores again what the store has lost. After an error the next read finds it again.
func (g *Registry) restore(ctx context.Context, lost []Edit) (err error) {
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.isIncomplete = err != nil; g.isIncomplete {
			g.position = 0
		}
	}()
	restored := 0
	for part := range slices.Chunk(lost, maxRestored) {
		results, err := g.Commit(ctx, part)
		if err != nil {
			return fmt.Errorf("the store has lost overrides, and they could not be stored again: %w", err)
		}
		for _, r := range results {
			if r.Version > 0 {
				restored++
			}
		}
	}
	if restored > 0 {
		g.cfg.OnRestored(restored)
	}
	return nil
}

// removeEnded removes overrides from the store that have ended a minute ago and more. Each replica does so now and
// then.
func (g *Registry) removeEnded(ctx context.Context) {
	const share = 0.01 // So that replicas do not do it together.
	g.mu.Lock()
	isTime := g.cfg.Store.Pause() == 0 || rand.Float64() < share
	ended := isTime && g.hasEnded(g.nanos()-int64(cleanPause))
	g.mu.Unlock()
	if ended {
		_, _ = g.Commit(ctx, nil) // The next one tries again.
	}
}

// hasEnded reports whether an override has ended before the instant. g.mu is held.
func (g *Registry) hasEnded(before int64) bool {
	for _, t := range g.domains {
		for e := range t.all {
			if e.until > 0 && e.until < before {
				return true
			}
		}
	}
	return false
}

// override returns e as an Override of a domain.
func (e *entry) override(domain string) Override {
	t := e.texts.Value()
	o := Override{
		Domain: domain, Rule: t.rule, Subject: e.subject, Limit: e.limit.String(), Reason: t.reason, Who: t.who,
		Since: time.Unix(0, e.since).UTC(),
	}
	if e.until > 0 {
		o.Until = time.Unix(0, e.until).UTC()
	}
	return o
}

// List returns the overrides of a domain, or of all if it is empty, that have not ended, in the order of domain,
// subject and rule.
func (g *Registry) List(domain string) (list []Override) {
	now := g.nanos()
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, t := range g.domains {
		if domain != "" && domain != name {
			continue
		}
		for e := range t.all {
			if e.until == 0 || e.until > now {
				list = append(list, e.override(name))
			}
		}
	}
	slices.SortFunc(list, func(a, b Override) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Rule, b.Rule))
	})
	return list
}

// Get returns the override with the ID; not ok if there is none, or if it has ended.
func (g *Registry) Get(id ID) (o Override, ok bool) {
	p, err := ParsePattern(id.Subject)
	if err != nil {
		return o, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	t, known := g.domains[id.Domain]
	if !known {
		return o, false
	}
	e := t.get(&p, id.Rule)
	if e == nil || e.until > 0 && e.until <= g.nanos() {
		return o, false
	}
	return e.override(id.Domain), true
}

// History returns the last changes, the newest first.
func (g *Registry) History(ctx context.Context) ([]Record, error) { return g.cfg.Store.History(ctx) }

// State is what a Registry knows of its Store.
type State struct {
	Count    int       // the number of overrides, with those that have ended and are still there
	ReadAt   time.Time // when the store was read last; zero for never
	Failure  error     // why the store cannot be followed now; nil if it can
	Failures uint64    // the number of reads that failed
}

// State returns the state of the registry.
func (g *Registry) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return State{g.count, g.readAt, g.failure, g.failures}
}

// Apply returns set with the overrides in list, none of which ends.
func Apply(set *rules.Set, list []Override) (*rules.Set, error) {
	g := New(Config{Store: None(nil)})
	d := &Delta{}
	for i, o := range list {
		o, err := o.Canonical()
		if err != nil {
			return nil, fmt.Errorf("changed limit %d: %w", i+1, err)
		}
		o.Until = time.Time{}
		d.Set = append(d.Set, Versioned{o, uint64(i + 1)})
	}
	g.use(d, true)
	return g.Over(set), nil
}
