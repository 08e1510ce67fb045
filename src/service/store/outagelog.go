package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/fallback"
	"ratelimit/src/operator/output"
)

const (
	// outagePoll is the time between two looks at the store.
	outagePoll = time.Second
	// outageRepeat is the time between two lines about the same outage.
	outageRepeat = time.Minute
	// markTTL is how long a mark stays in the store, and markRenewal the time after which it is written again.
	markTTL, markRenewal = 24 * time.Hour, time.Hour
)

// outageView is what a look at the store shows.
type outageView struct {
	at       time.Time
	silent   []string // the labels of the stores of which a server does not answer
	since    time.Time
	fallback fallback.Stats
	// replicasKnown is set if it is known how many replicas divide limits.
	replicasKnown bool
}

// outageLog finds what the log says of outages: once a minute what on_store_failure decides, and at the end how long
// the store was away. It is quiet about an outage that a single look shows. Its zero value has seen no outage.
type outageLog struct {
	last   outageView // the last look
	first  outageView // the look before the outage; only valid if isAway
	isAway bool
	said   outageView // the look at which the last line about the outage was said
	// nextUnknown is when it may be said again that local decides with an unknown number of replicas.
	nextUnknown time.Time
}

// lines returns what to log after a look. ended is the outage that is over with it; nil if none is.
func (l *outageLog) lines(now outageView) (lines []string, ended *endedOutage) {
	before := l.last
	l.last = now
	wasSilent := len(before.silent) > 0
	switch {
	case l.isAway && len(now.silent) == 0:
		l.isAway = false
		ended = &endedOutage{
			stores: before.silent, duration: now.at.Sub(before.since),
			decided: decidedText(&l.first.fallback, &now.fallback),
		}
	case l.isAway && now.at.Sub(l.said.at) >= outageRepeat:
		if decided := decidedText(&l.said.fallback, &now.fallback); decided != "" {
			lines = append(lines, fmt.Sprintf("no answer from %s for %v; on_store_failure decided %s in the last %v",
				storesText(now.silent), awayFor(now.at.Sub(now.since)), decided, awayFor(now.at.Sub(l.said.at))))
		}
		l.said = now
	case !l.isAway && wasSilent && len(now.silent) > 0:
		l.isAway, l.said = true, l.first
	case !wasSilent:
		l.first = before
		if before.at.IsZero() {
			l.first = now
		}
	}
	local := now.fallback.UnansweredHits[backend.FallbackLocal] > before.fallback.UnansweredHits[backend.FallbackLocal]
	if local && !now.replicasKnown && !now.at.Before(l.nextUnknown) {
		l.nextUnknown = now.at.Add(outageRepeat)
		lines = append(lines, "on_store_failure: local decides, and it is unknown how many replicas there are: each "+
			"admits the whole limit; set REPLICAS to their number")
	}
	return lines, ended
}

// endedOutage is an outage that is over.
type endedOutage struct {
	stores   []string
	duration time.Duration
	decided  string // what on_store_failure decided; empty for nothing
}

// text returns the line about the end. lost are the stores that came back without what this process has stored.
func (e *endedOutage) text(lost []string) string {
	verb := "answers"
	if len(e.stores) > 1 {
		verb = "answer"
	}
	text := fmt.Sprintf("%s %s again after %v", storesText(e.stores), verb, awayFor(e.duration))
	if e.decided != "" {
		text += "; on_store_failure decided " + e.decided
	}
	if len(lost) > 0 {
		text += fmt.Sprintf("; %s came back without what this service had stored, so counters start again", storesText(lost))
	}
	return text
}

func storesText(names []string) string { return strings.Join(names, " and ") }

func awayFor(d time.Duration) time.Duration { return d.Round(time.Second) }

// decidedText returns what on_store_failure decided between two looks: "1200 hits (1000 allow, 200 local)". It is empty
// for nothing. Hits that failed are not among them: the front ends log these.
func decidedText(from, to *fallback.Stats) string {
	var total uint64
	var parts []string
	for i, word := range backend.Fallbacks.Names() {
		if n := to.UnansweredHits[i] - from.UnansweredHits[i]; backend.Fallback(i) != backend.FallbackError && n > 0 {
			total += n
			parts = append(parts, fmt.Sprintf("%d %s", n, word))
		}
	}
	if total == 0 {
		return ""
	}
	return fmt.Sprintf("%s (%s)", output.Plural(total, "hit"), strings.Join(parts, ", "))
}

// logOutages logs what outageLog finds, until ctx ends.
func (s *Store) logOutages(ctx context.Context) error {
	var l outageLog
	marks := make([]mark, len(s.Pools))
	for i, p := range s.Pools {
		marks[i] = mark{pool: p, key: fmt.Sprintf("%sratelimit_mark_%016x", s.cfg.CacheKeyPrefix, rand.Uint64())}
	}
	ticker := time.NewTicker(outagePoll)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		view := s.outageView(time.Now())
		lines, ended := l.lines(view)
		var lost []string
		for i := range marks {
			m := &marks[i]
			name := m.pool.labelInMessages
			if ended != nil && slices.Contains(ended.stores, name) && m.isLost(ctx) {
				lost = append(lost, name)
			}
			if !slices.Contains(view.silent, name) {
				m.renew(ctx)
			}
		}
		if ended != nil {
			lines = append(lines, ended.text(lost))
		}
		for _, line := range lines {
			s.cfg.Log.Warn(line)
		}
	}
}

// outageView looks at the store.
func (s *Store) outageView(now time.Time) outageView {
	v := outageView{at: now, since: now, fallback: s.Fallback.Stats(), replicasKnown: s.Replicas.Known()}
	for _, p := range s.Pools {
		state := p.lastPing()
		if o := p.outage(&state); o != nil && state.HasAnswered {
			v.silent = append(v.silent, p.labelInMessages)
			if o.Since.Before(v.since) {
				v.since = o.Since
			}
		}
	}
	return v
}

// mark is a text that this process keeps in a store. If it is gone after an outage, the store has lost more.
type mark struct {
	pool      *Pool
	key       string
	writtenAt time.Time // zero if it was not written, or is lost
	triedAt   time.Time // when it was last tried to write it
}

// renew writes the mark again from time to time. A failure does not matter: then a loss is not noticed.
func (m *mark) renew(ctx context.Context) {
	now := time.Now()
	if !m.triedAt.IsZero() && now.Sub(m.triedAt) < markRenewal {
		return
	}
	m.triedAt = now
	ctx, cancel := context.WithTimeout(ctx, m.pool.pingTimeout)
	defer cancel()
	if err := m.pool.SetText(ctx, m.key, []byte("1"), markTTL); err == nil {
		m.writtenAt = now
	}
}

// isLost reports whether the store has lost the mark.
func (m *mark) isLost(ctx context.Context) bool {
	if m.writtenAt.IsZero() || time.Since(m.writtenAt) > markTTL-time.Minute {
		return false // It may have expired.
	}
	ctx, cancel := context.WithTimeout(ctx, m.pool.pingTimeout)
	defer cancel()
	text, err := m.pool.Text(ctx, m.key)
	if lost := text == nil && err == nil; !lost {
		return false
	}
	m.writtenAt, m.triedAt = time.Time{}, time.Time{}
	return true
}
