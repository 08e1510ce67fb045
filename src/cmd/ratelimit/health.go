package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/metrics"
	"ratelimit/src/metrics/prometheus"
	"ratelimit/src/rules"
)

// health is whether this process should get traffic, and if not, why.
type health struct {
	startEmpty bool                   // healthy before the first rules
	needDomain bool                   // unhealthy without any domain
	onChange   func(bool)             // told after updates, in order; gRPC health follows
	note       func(time.Time) string // what is worth knowing of the stores though they count as ready

	mu        sync.Mutex // guards what follows
	storeless bool       // healthy whether or not the stores answer
	loaded    bool       // rules were loaded at least once
	domains   int        // in the rules in force
	refused   error      // why the last load failed; nil when it did not
	refusedAt time.Time  // when it did
	version   string     // of the rules in force, if a management server has them
	apart     error      // why there is no stream to the management server; nil when there is, or none is asked
	stores    []storeHealth
	divvy     error // why divvy's port is not open; nil: it is, or need not be
	stopping  bool
	telling   bool // a goroutine calls onChange
	untold    bool // it is to call it once more
}

// storeHealth is what health knows of one store.
type storeHealth struct {
	name string
	what string        // in words, such as "Redis"
	note func() string // what is worth knowing of it; nil: nothing ever is
	err  error         // why it cannot be reached; nil when it can
}

// errStoreUnknown is the state before the store was asked.
var errStoreUnknown = errors.New("the store has not answered yet")

// audience is who reads of health.
type audience bool

const (
	// callers reach the ports on which requests are answered.
	callers audience = false
	// operators reach the debug port and the log.
	operators audience = true
)

// reason is why something is not ready: for callers the class alone, without
// addresses, paths or what rules say, and for operators all that is known. The zero
// reason is none.
type reason struct{ class, full string }

// both is a reason that says the same to everybody.
func both(text string) reason { return reason{text, text} }

// after is r behind the words of what follows from it.
func (r reason) after(text string) reason { return reason{text + r.class, text + r.full} }

// to is r in the words for a.
func (r reason) to(a audience) string {
	if a == operators {
		return r.full
	}
	return r.class
}

// update changes the state under its lock, and tells onChange without it. Of several
// updates at the same time, one goroutine tells the newest state, so the last call of
// onChange is always the right one.
func (h *health) update(change func(*health)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
	h.untold = true
	if h.telling {
		return
	}
	h.telling = true
	for h.untold {
		h.untold = false
		ok := h.why() == reason{}
		h.mu.Unlock()
		h.onChange(ok)
		h.mu.Lock()
	}
	h.telling = false
}

// reason is why this process should not get traffic, in one line; "" while it should.
func (h *health) reason(a audience) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.why().to(a)
}

// components are the same, part by part, with what does not count now.
func (h *health) components(a audience) []admin.Component {
	list, divvy := h.states(a)
	for i := range h.stores { // note does not change, so it needs no lock
		if c, note := &list[len(list)-len(h.stores)+i], h.stores[i].note; c.Note == "" && note != nil {
			c.Note = note()
		}
	}
	if note := h.note(time.Now()); note != "" {
		list = append(list, admin.Component{Name: "counting", Note: note})
	}
	if divvy != "" {
		list = append(list, admin.Component{Name: "divvy", Why: divvy})
	}
	return list
}

// states are the components that this struct knows of itself, the stores last, and
// why divvy's port is not open.
func (h *health) states(a audience) (list []admin.Component, divvy string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	process := admin.Component{Name: "process"}
	if h.stopping {
		process.Why = shuttingDown
	}
	rules := admin.Component{Name: "rules", Why: h.whyRules().to(a), Note: plural(h.domains, "domain")}
	if h.loaded && h.domains == 0 {
		rules.Note += ", so everything passes"
	}
	if h.version != "" {
		rules.Note += ", version " + h.version
	}
	if h.refused != nil && rules.Why == "" {
		rules.Note += ", " + h.whyRefused().after("the last load was ").to(a)
	}
	if h.apart != nil && rules.Why == "" {
		rules.Note += ", " + h.whyApart().to(a)
	}
	list = []admin.Component{process, rules}
	for _, st := range h.stores {
		c := admin.Component{Name: st.name}
		switch {
		case st.err == nil:
		case h.storeless:
			c.Note = st.why().to(a) + "; on_store_failure decides"
		default:
			c.Why = st.why().to(a)
		}
		list = append(list, c)
	}
	if h.divvy != nil {
		divvy = h.whyDivvy().to(a)
	}
	return list, divvy
}

const shuttingDown = "shutting down"

func (h *health) why() reason {
	if h.stopping {
		return both(shuttingDown)
	}
	for _, st := range h.stores {
		if st.err != nil && !h.storeless {
			return st.why()
		}
	}
	if h.divvy != nil {
		return h.whyDivvy()
	}
	return h.whyRules()
}

func (h *health) whyRules() reason {
	switch {
	case !h.loaded && !h.startEmpty && h.refused != nil:
		return h.whyRefused().after("no rules are loaded: ")
	case !h.loaded && !h.startEmpty && h.apart != nil:
		return h.whyApart().after("no rules are loaded: ")
	case !h.loaded && !h.startEmpty:
		return both("the rules are not loaded yet")
	case h.needDomain && h.domains == 0:
		return both("no domain is loaded")
	}
	return reason{}
}

func (h *health) whyRefused() reason {
	when := "refused at " + h.refusedAt.UTC().Format(time.RFC3339)
	return reason{when, when + ": " + firstProblem(h.refused)}
}

// noteRefused writes a comment line for operators if the last load was refused, so that
// nobody takes the rules in force for those of the files.
func (h *health) noteRefused(w io.Writer) error {
	why, state := reason{}, "none are in force yet"
	h.mu.Lock()
	if h.refused != nil {
		why = h.whyRefused()
	}
	if h.loaded {
		state = "those below stay in force"
	}
	h.mu.Unlock()
	if why == (reason{}) {
		return nil
	}
	_, err := fmt.Fprintf(w, "# newer rules were %s (%s)\n", why.to(operators), state)
	return err
}

func (h *health) whyApart() reason {
	return reason{"there is no stream to the management server", firstProblem(h.apart)}
}

func (h *health) whyDivvy() reason {
	return reason{"divvy's port is not open", h.divvy.Error()}
}

func (st *storeHealth) why() reason {
	if errors.Is(st.err, errStoreUnknown) {
		return both(st.err.Error())
	}
	if slow, isSlow := errors.AsType[*slowPool](st.err); isSlow {
		return slow.why
	}
	return reason{st.what + " does not answer", firstProblem(st.err)}
}

// samples are what alerts ask of it, as native metrics.
func (h *health) samples(add func(prometheus.Sample)) {
	h.mu.Lock()
	ready, refused, domains := h.why() == reason{}, h.refused != nil, h.domains
	h.mu.Unlock()
	gauge := func(name, help string, yes bool) {
		value := 0.0
		if yes {
			value = 1
		}
		add(prometheus.Sample{Name: name, Help: help, Kind: metrics.KindGauge, Value: value})
	}
	gauge("ratelimit_ready", "1 while this process should get traffic, as its health checks say.", ready)
	gauge("ratelimit_config_refused", "1 while the rules that are there are not those in force, since they have a mistake.", refused)
	add(prometheus.Sample{
		Name: "ratelimit_config_domains", Help: "How many domains the rules in force have. Without one, everything passes.",
		Kind: metrics.KindGauge, Value: float64(domains),
	})
}

// readiness says once that rules are loaded, the store answers and ports are open.
type readiness struct {
	say func(facts, late logrus.Fields)

	mu      sync.Mutex
	facts   logrus.Fields // of the first rules; nil: none yet
	late    logrus.Fields // the address of a port that was opened after the others
	missing int           // ports that are not open yet
	silent  int           // stores that have not answered yet
	// storeless says that these may come when they like.
	storeless bool
	said      bool
}

func (r *readiness) update(change func(*readiness)) {
	r.mu.Lock()
	change(r)
	now := !r.said && r.facts != nil && r.missing == 0 && (r.silent == 0 || r.storeless)
	r.said = r.said || now
	facts, late := r.facts, r.late
	r.mu.Unlock()
	if now {
		r.say(facts, late)
	}
}

// firstProblem is an error in one line.
func firstProblem(err error) string {
	var problems rules.Problems
	if errors.As(err, &problems) && len(problems) > 1 {
		return problems[0].String() + " (and more, see the log)"
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
