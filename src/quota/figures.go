package quota

import (
	"slices"
	"time"
)

// bucketFigures are what operators see of a bucket. They change with each report and assignment, so that a reader need
// not visit all members.
type bucketFigures struct {
	countedFigures       // the sums of all members.
	shortSince     int64 // when the first member became short, as Instant.elapsed; 0 if none is.
	unfairness     float64
	left           leftUnits
}

// countedFigures are what a member adds to those of its bucket.
type countedFigures struct {
	demandMillis uint64 // how many thousandths of a unit a second callers ask for.
	units        uint64 // of the newest assignment.
	shortMembers int    // 1 if memberFigures.isShort.
}

// memberFigures are what is measured of a member.
type memberFigures struct {
	// askedRate and admittedRate are how many units a second its callers asked for, and got, in the last measuring period.
	askedRate, admittedRate float64
	isShort                 bool // true if the member refused more than a tenth of what its callers asked for.

	// The measuring period under way.
	start           int64 // as Instant.elapsed; 0 before the first report.
	asked, admitted uint64
}

// minMeasuringPeriod is the shortest time over which it is measured what a proxy refuses. In long windows it is the
// fairness window, so that a limit that is used up before its window ends does not make a bucket short now and then.
const minMeasuringPeriod = 10 * time.Second

// leftUnits are units that proxies had when they left, and may still use until they expire. The zero value has none.
type leftUnits struct {
	units uint64
	until int64 // when the last of them expires, as Instant.elapsed.
}

// add adds other. All units are taken to hold as long as the last ones.
func (l *leftUnits) add(other leftUnits) {
	l.units, l.until = l.units+other.units, max(l.until, other.until)
}

// at returns the units that have not expired at the time now.
func (l *leftUnits) at(now int64) uint64 {
	if now >= l.until {
		return 0
	}
	return l.units
}

// measure notes a report. What came before the first one is left out, because the proxy had no assignment then.
func (f *memberFigures) measure(allowed, denied uint64, now int64, fairSeconds float64) {
	if f.start == 0 {
		f.start = now
		return
	}
	allowed, denied = min(allowed, maxReported), min(denied, maxReported)
	f.asked, f.admitted = f.asked+allowed+denied, f.admitted+allowed
	seconds := time.Duration(now - f.start).Seconds()
	if seconds < max(minMeasuringPeriod.Seconds(), fairSeconds) {
		return
	}
	f.isShort = f.admitted < f.asked-f.asked/10
	f.askedRate, f.admittedRate = float64(f.asked)/seconds, float64(f.admitted)/seconds
	f.start, f.asked, f.admitted = now, 0, 0
}

// maxReported bounds what one report adds to figures, so that they do not overflow.
const maxReported = 1 << 40

// count brings the figures of b up to date after a change of m.
func (b *bucket) count(m *member, now int64) {
	var next countedFigures
	if !m.isGone {
		next.demandMillis, next.units = uint64(1000*min(m.demand, maxAssignedUnits)), uint64(m.newest.Units)
		if m.figures.isShort {
			next.shortMembers = 1
		}
	}
	f, old := &b.figures, m.counted
	m.counted = next
	f.demandMillis += next.demandMillis - old.demandMillis
	f.units += next.units - old.units
	f.shortMembers += next.shortMembers - old.shortMembers
	switch {
	case f.shortMembers == 0:
		f.shortSince, f.unfairness = 0, 0
	case f.shortSince == 0:
		f.shortSince = now
	}
}

// noteLeave notes what a member that leaves may still use.
func (b *bucket) noteLeave(m *member) {
	left := &b.figures.left
	left.units = left.at(m.lastReport)
	left.add(leftUnits{min(m.inUse(), m.unreported), m.expiresAt})
	b.count(m, m.lastReport)
}

// updateUnfairness sets b.figures.unfairness: by what fraction the worst-off proxy gets less than its callers ask for,
// or less than the proxy that gets most, whichever is smaller. Proxies that have stopped reporting are not short any
// more.
//
//	asks 300 gets 70
//	asks 300 gets 30   4/7 less than 70
//	asks  20 gets 19   1/20 less than 20
func (b *bucket) updateUnfairness(now int64) {
	most, worst := 0.0, 0.0
	for _, m := range b.members {
		if m.figures.isShort && m.isSilent(now) {
			m.figures = memberFigures{}
			b.count(m, now)
		}
		most = max(most, m.figures.admittedRate)
	}
	for _, m := range b.members {
		if f := &m.figures; f.isShort && most > 0 {
			worst = max(worst, 1-f.admittedRate/min(f.askedRate, most))
		}
	}
	b.figures.unfairness = worst
}

// Totals are figures of all buckets of a Divider.
type Totals struct {
	Proxies         int64   `json:"proxies"` // how many streams there are.
	Buckets         int64   `json:"buckets"`
	DemandPerSecond float64 `json:"demand_per_second"` // how many units a second the callers of all proxies ask for.
	Units           uint64  `json:"units"`             // the sum of the newest assignments of all proxies.
	LeftUnits       uint64  `json:"left_units"`        // what proxies may still use after their streams ended.
	// ShortBuckets is how many buckets have a proxy that refuses more than a tenth of its requests.
	ShortBuckets int `json:"short_buckets"`
	// Unfairness is the largest of all buckets: by what fraction the worst-off proxy gets less than its callers ask for,
	// or less than the proxy that gets most, whichever is smaller. It is measured over the last 10 seconds, or in long
	// windows the last minute.
	Unfairness float64 `json:"unfairness"`
}

// IsZero reports that no proxy is connected, and that nothing is left of one that was.
func (t *Totals) IsZero() bool { return t.Proxies == 0 && t.Buckets == 0 && t.LeftUnits == 0 }

// Totals returns the figures of all buckets, at most a second old.
func (s *Stats) Totals() (t Totals) {
	if last := s.totals.Load(); last != nil {
		t = *last
	}
	t.Proxies, t.Buckets = s.Proxies.Load(), s.Buckets.Load()
	return t
}

// unfairnessEvery is in how many seconds the unfairness of each bucket is computed once, because that visits all
// members.
const unfairnessEvery = 10

// addUp sets the Totals.
func (d *Divider) addUp(now int64) {
	d.mu.Lock()
	buckets := slices.Clone(d.list)
	t := Totals{LeftUnits: d.left.at(now)}
	d.left.units = t.LeftUnits
	d.mu.Unlock()
	millis := uint64(0)
	for i, b := range buckets {
		b.mu.Lock()
		f := &b.figures
		if f.shortMembers > 0 && int64(i)%unfairnessEvery == now/int64(time.Second)%unfairnessEvery {
			b.updateUnfairness(now)
		}
		millis += f.demandMillis
		t.Units += f.units
		if f.shortMembers > 0 {
			t.ShortBuckets++
			t.Unfairness = max(t.Unfairness, f.unfairness)
		}
		if !b.isRemoved { // Otherwise Divider.left has them.
			t.LeftUnits += f.left.at(now)
		}
		b.mu.Unlock()
	}
	t.DemandPerSecond = float64(millis) / 1000
	d.stats.totals.Store(&t)
}
