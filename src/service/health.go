package service

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/rules"
)

// health says whether this process should receive traffic, and if not, why. It becomes
// ready once, when requests are answered; it may change between healthy and unhealthy.
type health struct {
	onChange func(healthy bool)                            // called after each update, in order
	onReady  func(first logrus.Fields, lateDivvy net.Addr) // called once, when requests are answered
	note     func(time.Time) string                        // a remark about stores, or ""

	mu        sync.Mutex // guards all fields below
	rules     ruleHealth
	stores    []storeHealth
	storeless bool     // stores that do not answer do not make the process unhealthy
	divvy     error    // why divvy's port is not open; nil if it is, or is not needed
	lateDivvy net.Addr // of divvy's port if it was opened after the others
	stopping  bool
	tell      struct {
		running bool // a goroutine calls onChange
		changed bool // and must call it again
		ready   bool // onReady was called
	}
}

// ruleHealth is the state of the rules.
type ruleHealth struct {
	startEmpty bool          // healthy before the first rules
	needDomain bool          // unhealthy without any domain
	loaded     bool          // rules were loaded at least once
	first      logrus.Fields // facts about the first rules; nil before these
	domains    int           // of the rules in force
	version    string        // of the rules in force; empty unless a management server sent them
	refused    error         // why the last load failed; nil if it did not
	refusedAt  time.Time
	stream     error // why there is no stream to the management server; nil if there is, or rules are files
}

// storeHealth is the state of one store.
type storeHealth struct {
	name     string        // of the component on /readyz
	what     string        // in messages, such as "Redis"
	note     func() string // a remark that does not make the process unready; nil: none
	err      error         // why it cannot be reached; nil if it can
	answered bool          // it was reached at least once
}

// errStoreUnknown is the state before the store was asked.
var errStoreUnknown = errors.New("the store has not answered yet")

// audience is the group of people that read a reason.
type audience bool

const (
	// callers reach the ports on which requests are answered.
	callers audience = false
	// operators reach the debug port and the log.
	operators audience = true
)

// reason is why the process is not ready. Callers see only the class, without addresses,
// paths and texts of rules; operators see everything. The zero reason means ready.
type reason struct{ class, full string }

// same returns a reason with one text for everybody.
func same(text string) reason { return reason{text, text} }

// and returns r with next behind it.
func (r reason) and(next reason) reason { return reason{r.class + next.class, r.full + next.full} }

// to returns the text of r for a.
func (r reason) to(a audience) string {
	if a == operators {
		return r.full
	}
	return r.class
}

// update changes the state under the lock, and calls onChange and onReady without it. If
// several goroutines update at a time, one of them makes the calls, so the last call of
// onChange always has the newest state.
func (h *health) update(change func(*health)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
	h.tell.changed = true
	if h.tell.running {
		return
	}
	h.tell.running = true
	for h.tell.changed {
		h.tell.changed = false
		healthy := h.why() == reason{}
		becameReady := !h.tell.ready && h.answers()
		h.tell.ready = h.tell.ready || becameReady
		facts, late := h.rules.first, h.lateDivvy
		h.mu.Unlock()
		h.onChange(healthy)
		if becameReady {
			h.onReady(facts, late)
		}
		h.mu.Lock()
	}
	h.tell.running = false
}

// answers says whether requests are answered: rules are in force, all ports are open and
// each store that is needed has answered once.
func (h *health) answers() bool {
	silent := func(st storeHealth) bool { return !st.answered }
	return h.rules.first != nil && h.divvy == nil && (h.storeless || !slices.ContainsFunc(h.stores, silent))
}

// reason returns why this process should receive no traffic, in one line; "" if it should.
func (h *health) reason(a audience) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.why().to(a)
}

// components returns the state of each part, with remarks that do not count.
func (h *health) components(a audience) (list []admin.Component) {
	h.mu.Lock()
	conditions := h.conditions()
	h.mu.Unlock()
	stores := conditions[2 : 2+len(h.stores)]
	for i, st := range h.stores { // note does not change, so it needs no lock
		if stores[i].note == (reason{}) && st.note != nil {
			stores[i].note = same(st.note())
		}
	}
	if note := h.note(time.Now()); note != "" {
		conditions = slices.Insert(conditions, 2+len(h.stores), condition{name: "counting", note: same(note)})
	}
	for _, c := range conditions {
		list = append(list, admin.Component{Name: c.name, Why: c.why.to(a), Note: c.note.to(a)})
	}
	return list
}

// condition is the state of one part: why it is not ready, and a remark.
type condition struct {
	name      string
	why, note reason
}

const shuttingDown = "shutting down"

// conditions returns the states of the process, the rules, the stores and divvy's port.
func (h *health) conditions() []condition {
	process := condition{name: "process"}
	if h.stopping {
		process.why = same(shuttingDown)
	}
	r := &h.rules
	rules := condition{name: "rules", why: r.why(), note: same(plural(r.domains, "domain"))}
	if r.loaded && r.domains == 0 {
		rules.note = rules.note.and(same(", so everything passes"))
	}
	if r.version != "" {
		rules.note = rules.note.and(same(", version " + r.version))
	}
	if r.refused != nil && rules.why == (reason{}) {
		rules.note = rules.note.and(same(", the last load was ")).and(r.whyRefused())
	}
	if r.stream != nil && rules.why == (reason{}) {
		rules.note = rules.note.and(same(", ")).and(r.whyStream())
	}
	list := []condition{process, rules}
	for _, st := range h.stores {
		c := condition{name: st.name}
		switch {
		case st.err == nil:
		case h.storeless:
			c.note = st.why().and(same("; on_store_failure decides"))
		default:
			c.why = st.why()
		}
		list = append(list, c)
	}
	if h.divvy != nil {
		list = append(list, condition{name: "divvy", why: reason{"divvy's port is not open", h.divvy.Error()}})
	}
	return list
}

// why returns the first reason of the process, a store, divvy's port and the rules.
func (h *health) why() reason {
	list := h.conditions()
	for _, c := range slices.Concat(list[:1], list[2:], list[1:2]) {
		if c.why != (reason{}) {
			return c.why
		}
	}
	return reason{}
}

func (r *ruleHealth) why() reason {
	switch {
	case !r.loaded && !r.startEmpty && r.refused != nil:
		return same("no rules are loaded: ").and(r.whyRefused())
	case !r.loaded && !r.startEmpty && r.stream != nil:
		return same("no rules are loaded: ").and(r.whyStream())
	case !r.loaded && !r.startEmpty:
		return same("the rules are not loaded yet")
	case r.needDomain && r.domains == 0:
		return same("no domain is loaded")
	}
	return reason{}
}

func (r *ruleHealth) whyRefused() reason {
	if r.refused == nil {
		return reason{}
	}
	when := "refused at " + r.refusedAt.UTC().Format(time.RFC3339)
	return reason{when, when + ": " + firstProblem(r.refused)}
}

func (r *ruleHealth) whyStream() reason {
	return reason{"there is no stream to the management server", firstProblem(r.stream)}
}

func (st *storeHealth) why() reason {
	if errors.Is(st.err, errStoreUnknown) {
		return same(st.err.Error())
	}
	if slow, isSlow := errors.AsType[*slowPool](st.err); isSlow {
		return slow.why
	}
	return reason{st.what + " does not answer", firstProblem(st.err)}
}

// healthValues are the values of the figures of health.
type healthValues struct {
	Ready, Refused bool
	Domains        int
}

func (h *health) states() healthValues {
	h.mu.Lock()
	defer h.mu.Unlock()
	return healthValues{h.why() == reason{}, h.rules.refused != nil, h.rules.domains}
}

// noteRefused writes a comment line for operators if the last load was refused: the rules
// in force are not those of the files then.
func (h *health) noteRefused(w io.Writer) error {
	h.mu.Lock()
	refused, state, why := h.rules.refused != nil, "none are in force yet", h.rules.whyRefused()
	if h.rules.loaded {
		state = "those below stay in force"
	}
	h.mu.Unlock()
	if !refused {
		return nil
	}
	_, err := fmt.Fprintf(w, "# newer rules were %s (%s)\n", why.full, state)
	return err
}

// buildHealth sets the state before the first rules and the first answer of a store.
func (s *Service) buildHealth() {
	h := &s.health
	h.rules.startEmpty, h.rules.needDomain = s.Settings.ForceStartWithoutConfig, s.Settings.HealthyWithAtLeastOne
	h.onChange, h.onReady, h.note = s.front.grpc.SetServing, s.announceReady, s.store.note
	h.storeless = s.storeless(nil)
	if len(s.store.pools) == 0 {
		h.stores = []storeHealth{{name: "memory", answered: true}}
	}
	for _, p := range s.store.pools {
		h.stores = append(h.stores, storeHealth{name: p.name, what: p.what, note: p.note, err: errStoreUnknown})
	}
	h.update(func(*health) {})
}

// announceReady logs the one line that says that requests are answered. first are facts
// about the first rules.
func (s *Service) announceReady(first logrus.Fields, lateDivvy net.Addr) {
	line := s.log.announce.WithFields(first).WithFields(s.ports.addresses()).WithField("store", s.Settings.BackendType)
	if lateDivvy != nil {
		line = line.WithField("divvy", lateDivvy.String())
	}
	line.Info("ready")
	if s.OnReady != nil {
		s.OnReady(Ready{Out: s.Output.out.Important(), Rules: s.limiter.Rules(), HTTP: s.Addr("http"), Divvy: s.Addr("divvy")})
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

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
