package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"ratelimit/src/operator"
)

const (
	// maxListeners bounds the connections to /api/events.
	maxListeners = 32
	// updateInterval is the time between two updates. A listener that hears nothing for several intervals may take the
	// connection for lost.
	updateInterval = time.Second
	// eventWriteTimeout is how long a listener may take to read an event.
	eventWriteTimeout = 5 * time.Second
	// minListening is how long a listener stays at least. While all places are taken, a new one ends the oldest that has
	// had its time: the system takes megabytes for a client that reads nothing, so a write need not fail for hours.
	minListening = time.Minute
	// Bounds on what one update lists.
	updateDomains  = 50
	updateRules    = 20
	updateSubjects = 20
)

// Update is the data of the event "update" of /api/events.
type Update struct {
	State operator.State `json:"state"`
	// Rates has the busiest domains and rules.
	Rates     operator.Rates      `json:"rates"`
	Top       TopSubjects         `json:"top"`
	Quotas    *operator.Quotas    `json:"quotas,omitempty"`    // nil if no proxy has quotas.
	Candidate *operator.Candidate `json:"candidate,omitempty"` // nil if no directory is set for candidate rules.
	// HasPeers tells that there are sums of several replicas. Replicas has these if rates, subjects and quotas are sums;
	// State and Candidate are always those of this replica.
	HasPeers bool               `json:"has_peers,omitempty"`
	Replicas []operator.Replica `json:"replicas,omitempty"`
}

// TopSubjects are subjects of the last minute.
type TopSubjects struct {
	Hot    []operator.Subject `json:"hot"`
	Denied []operator.Subject `json:"denied"`
}

// eventStream answers /api/events with server-sent events: "update" each second, and "denial" for each sampled denial.
// A stream begins with an update and the newest denials. All listeners share one computation of an update. It starts no
// goroutine.
type eventStream struct {
	api figuresAPI

	mu         sync.Mutex  // guards the fields below.
	listeners  []*listener // the oldest first.
	update     []byte      // the newest event "update".
	computedAt time.Time
	sumUpdate  []byte // the event "update" of sum.
	sum        *operator.Sum
}

// listener is a connection to /api/events.
type listener struct {
	since   time.Time
	evicted chan struct{} // closed when the listener must make room.
}

func newEventStream(api figuresAPI) *eventStream { return &eventStream{api: api} }

// join adds a listener, for which the oldest one may have to make room. It returns nil if there is no room.
func (s *eventStream) join() *listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if len(s.listeners) == maxListeners {
		if now.Sub(s.listeners[0].since) < minListening {
			return nil
		}
		close(s.listeners[0].evicted)
		s.listeners = slices.Delete(s.listeners, 0, 1)
	}
	l := &listener{now, make(chan struct{})}
	s.listeners = append(s.listeners, l)
	return l
}

// leave removes a listener that has not been evicted.
func (s *eventStream) leave(l *listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = slices.DeleteFunc(s.listeners, func(other *listener) bool { return other == l })
}

// ServeHTTP sends events until the client has gone, does not read, or must make room, or the server stops.
func (s *eventStream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := parseParameters(r.URL.RawQuery, []string{"replicas"})
	sums := s.api.sums(p)
	if p.err != nil {
		http.Error(w, p.err.Error(), http.StatusBadRequest)
		return
	}
	l := s.join()
	if l == nil {
		w.Header().Set("Retry-After", "5")
		http.Error(w, fmt.Sprintf("%d listeners are connected to /api/events; close one of them", maxListeners),
			http.StatusServiceUnavailable)
		return
	}
	defer s.leave(l)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // A proxy must pass each event on at once.
	if r.Method == http.MethodHead {
		return
	}
	controller := http.NewResponseController(w)
	// The server's read timeout would end the request. It fails only in tests, for connections without deadlines.
	_ = controller.SetReadDeadline(time.Time{})
	send := func(events []byte) error {
		_ = controller.SetWriteDeadline(time.Now().Add(eventWriteTimeout)) // As above.
		if _, err := w.Write(events); err != nil {
			return err
		}
		return controller.Flush()
	}
	if sums != nil {
		s.sendSums(r, l, sums, send)
		return
	}
	s.sendEvents(r, l, send)
}

// sendSums does what sendEvents does, with the sums of several replicas. Denials come with the updates.
func (s *eventStream) sendSums(r *http.Request, l *listener, sums *operator.SumFigures, send func([]byte) error) {
	ticker := time.NewTicker(updateInterval)
	defer ticker.Stop()
	var lastID, nextOfOthers uint64 // lastID is that of this replica, nextOfOthers a number as in operator.Sum.
	for {
		sum, err := sums.Sum(r.Context())
		if err != nil { // Too many questions wait, or the client has gone. A client that is there connects again.
			return
		}
		var own, others []byte
		own, lastID = s.denialsAfter(lastID)
		for i, d := range sum.Denials {
			if n := sum.FirstDenial + uint64(i); n >= nextOfOthers {
				others, nextOfOthers = append(others, event("denial", d)...), n+1
			}
		}
		if send(slices.Concat(s.updateOf(sum), own, others)) != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-l.evicted:
			return
		case <-ticker.C:
		}
	}
}

// updateOf returns the event "update" of sum. Listeners share it.
func (s *eventStream) updateOf(sum *operator.Sum) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sum != sum {
		s.sum, s.sumUpdate = sum, s.computeUpdate(sum)
	}
	return s.sumUpdate
}

// sendEvents calls send with each event until send fails, the request ends, or the listener must make room.
func (s *eventStream) sendEvents(r *http.Request, l *listener, send func([]byte) error) {
	ticker := time.NewTicker(updateInterval)
	defer ticker.Stop()
	if send(s.currentUpdate()) != nil {
		return
	}
	var lastID uint64
	nextDenial := s.api.figures.NextDenial(lastID)
	for {
		var events []byte
		select {
		case <-r.Context().Done():
			return
		case <-l.evicted:
			return
		case <-nextDenial:
			events, lastID = s.denialsAfter(lastID)
			if nextDenial = nil; events == nil { // The denials are gone. Wait for the next update, so that this does not loop.
				continue
			}
			nextDenial = s.api.figures.NextDenial(lastID)
		case <-ticker.C:
			events = s.currentUpdate()
			nextDenial = s.api.figures.NextDenial(lastID)
		}
		if send(events) != nil {
			return
		}
	}
}

// currentUpdate returns the event "update". Calls within nine tenths of an interval return the same bytes, so that
// listeners whose tickers differ share one computation per interval.
func (s *eventStream) currentUpdate() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.update == nil || now.Sub(s.computedAt) >= updateInterval*9/10 {
		s.update, s.computedAt = s.computeUpdate(nil), now
	}
	return s.update
}

// computeUpdate returns the event "update" of this replica, or that of sum if it is not nil.
func (s *eventStream) computeUpdate(sum *operator.Sum) []byte {
	u := Update{
		State:    s.api.state(),
		Rates:    s.api.ratesOf(sum, operator.RatesQuery{Limit: updateRules}),
		HasPeers: s.api.sum != nil,
	}
	if sum != nil {
		u.Top = TopSubjects{listOf(sum.Hot), listOf(sum.Denied)}
		u.Replicas, u.State.Unmatched = sum.Replicas, u.Rates.Unmatched
		if sum.Quotas != nil {
			quotas := withLists(*sum.Quotas)
			u.Quotas = &quotas
		}
	} else {
		topOf := func(kind string) []operator.Subject {
			return listOf(s.api.figures.Top(operator.TopQuery{
				Kind: kind, Window: operator.WindowMinute, Limit: updateSubjects,
			}))
		}
		u.Top, u.Quotas = TopSubjects{topOf(operator.TopHot), topOf(operator.TopDenied)}, s.api.updateQuotas()
	}
	if c, ok := s.api.candidate(updateSubjects); ok {
		u.Candidate = &c
	}
	u.Rates.Domains = u.Rates.Domains[:min(updateDomains, len(u.Rates.Domains))] // The busiest ones come first.
	u.Rates.Unmatched = nil                                                      // The state has it.
	return event("update", u)
}

// denialsAfter returns the events of the newest denials with an ID above lastID, nil if there are none, and the ID of
// the last one.
func (s *eventStream) denialsAfter(lastID uint64) (events []byte, newLastID uint64) {
	for _, d := range s.api.figures.Denials(lastID, defaultDenials) {
		events, lastID = append(events, event("denial", d)...), d.ID
	}
	return events, lastID
}

// event returns a server-sent event with body as JSON.
func event(name string, body any) []byte {
	var b bytes.Buffer
	b.WriteString("event: " + name + "\ndata: ")
	// Encode fails only for NaN and infinite rates, which Figures does not return. It ends the data with a line feed.
	_ = json.NewEncoder(&b).Encode(body)
	b.WriteByte('\n')
	return b.Bytes()
}
