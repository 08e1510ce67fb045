package service

import (
	"cmp"
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
	onChange  func(healthy bool)                            // called after each update, in order
	onReady   func(first logrus.Fields, lateDivvy net.Addr) // called once, when requests are answered
	storeNote func(time.Time) string                        // returns a remark about hits without an answer, or ""

	mu                sync.Mutex // guards all fields below
	rules             ruleHealth
	stores            []storeHealth
	worksWithoutStore bool     // the process is healthy while stores do not answer
	divvy             error    // why divvy's port is not open; nil if it is, or is not needed
	lateDivvy         net.Addr // of divvy's port if it was opened after the start, else nil
	stopping          bool
	calls             struct {
		running bool // a goroutine is calling onChange
		pending bool // that goroutine must call onChange again
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
	label    string        // names the store in messages, such as "Redis"
	note     func() string // a remark that does not make the process unready; nil: none
	err      error         // why it cannot be reached; nil if it can
	answered bool          // it was reached at least once
}

// audience is for which group of people a text is written.
type audience bool

const (
	// callers reach the ports on which requests are answered.
	callers audience = false
	// operators reach the debug port and the log.
	operators audience = true
)

// text returns full for operators. Callers see only class, without addresses, paths and
// texts of rules.
func (a audience) text(class, full string) string {
	if a == operators {
		return full
	}
	return class
}

// storeError says why a store cannot be used: class to callers, full to operators.
type storeError struct{ class, full string }

func (e *storeError) Error() string { return e.full }

// errStoreUnknown is the state before the store was asked.
var errStoreUnknown = &storeError{"the store has not answered yet", "the store has not answered yet"}

// update changes the state under the lock, and calls onChange and onReady without it. If
// several goroutines update at a time, one of them makes the calls, so the last call of
// onChange always has the newest state.
func (h *health) update(change func(*health)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
	h.calls.pending = true
	if h.calls.running {
		return
	}
	h.calls.running = true
	for h.calls.pending {
		h.calls.pending = false
		healthy := h.why(callers) == ""
		becameReady := !h.calls.ready && h.answers()
		h.calls.ready = h.calls.ready || becameReady
		facts, late := h.rules.first, h.lateDivvy
		h.mu.Unlock()
		h.onChange(healthy)
		if becameReady {
			h.onReady(facts, late)
		}
		h.mu.Lock()
	}
	h.calls.running = false
}

// answers says whether requests are answered: rules are in force, all ports are open and
// each store that is needed has answered once.
func (h *health) answers() bool {
	silent := func(st storeHealth) bool { return !st.answered }
	return h.rules.first != nil && h.divvy == nil && (h.worksWithoutStore || !slices.ContainsFunc(h.stores, silent))
}

// reason returns why this process should receive no traffic, in one line; "" if it should.
func (h *health) reason(a audience) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.why(a)
}

// components returns the state of each part, with remarks that do not count.
func (h *health) components(a audience) []admin.Component {
	h.mu.Lock()
	list := h.parts(a)
	h.mu.Unlock()
	for i := range h.stores { // note does not change, so it needs no lock
		if c, note := &list[2+i], h.stores[i].note; c.Note == "" && note != nil {
			c.Note = note()
		}
	}
	if note := h.storeNote(time.Now()); note != "" {
		list = slices.Insert(list, 2+len(h.stores), admin.Component{Name: "counting", Note: note})
	}
	return list
}

const shuttingDown = "shutting down"

// parts returns the states of the process, the rules, each store, and divvy's port if it is
// not open. The caller holds h.mu.
func (h *health) parts(a audience) []admin.Component {
	list := []admin.Component{{Name: "process"}, h.rules.state(a)}
	if h.stopping {
		list[0].Why = shuttingDown
	}
	for _, st := range h.stores {
		c := admin.Component{Name: st.name}
		switch {
		case st.err == nil:
		case h.worksWithoutStore:
			c.Note = st.why(a) + "; on_store_failure decides"
		default:
			c.Why = st.why(a)
		}
		list = append(list, c)
	}
	if h.divvy != nil {
		list = append(list, admin.Component{Name: "divvy", Why: a.text("divvy's port is not open", h.divvy.Error())})
	}
	return list
}

// why returns why this process should receive no traffic, "" if it should. The process comes
// first, then the stores, divvy's port and the rules. The caller holds h.mu.
func (h *health) why(a audience) string {
	list := h.parts(a)
	for _, c := range slices.Concat(list[:1], list[2:], list[1:2]) {
		if c.Why != "" {
			return c.Why
		}
	}
	return ""
}

func (r *ruleHealth) state(a audience) admin.Component {
	c := admin.Component{Name: "rules", Note: plural(r.domains, "domain")}
	if r.loaded && r.domains == 0 {
		c.Note += ", so everything passes"
	}
	if r.version != "" {
		c.Note += ", version " + r.version
	}
	refused, stream := r.whyRefused(a), ""
	if r.stream != nil {
		stream = a.text("there is no stream to the management server", firstProblem(r.stream))
	}
	waits := !r.loaded && !r.startEmpty
	switch {
	case waits && refused+stream != "":
		c.Why = "no rules are loaded: " + cmp.Or(refused, stream)
	case waits:
		c.Why = "the rules are not loaded yet"
	case r.needDomain && r.domains == 0:
		c.Why = "no domain is loaded"
	default:
		if refused != "" {
			c.Note += ", the last load was " + refused
		}
		if stream != "" {
			c.Note += ", " + stream
		}
	}
	return c
}

// whyRefused returns when and why the last load was refused; "" if it was not.
func (r *ruleHealth) whyRefused(a audience) string {
	if r.refused == nil {
		return ""
	}
	when := "refused at " + r.refusedAt.UTC().Format(time.RFC3339)
	return a.text(when, when+": "+firstProblem(r.refused))
}

func (st *storeHealth) why(a audience) string {
	if e, ok := errors.AsType[*storeError](st.err); ok {
		return a.text(e.class, e.full)
	}
	return a.text(st.label+" does not answer", firstProblem(st.err))
}

// healthValues are the values of the figures of health.
type healthValues struct {
	Ready, Refused bool
	Domains        int
}

func (h *health) values() healthValues {
	h.mu.Lock()
	defer h.mu.Unlock()
	return healthValues{h.why(callers) == "", h.rules.refused != nil, h.rules.domains}
}

// noteRefused writes a comment line for operators if the last load was refused. The rules in
// force then differ from the files.
func (h *health) noteRefused(w io.Writer) error {
	h.mu.Lock()
	why, state := h.rules.whyRefused(operators), "none are in force yet"
	if h.rules.loaded {
		state = "those below stay in force"
	}
	h.mu.Unlock()
	if why == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "# newer rules were %s (%s)\n", why, state)
	return err
}

// buildHealth sets the state before the first rules and the first answer of a store.
func (s *Service) buildHealth() {
	h := &s.health
	h.rules.startEmpty, h.rules.needDomain = s.Settings.ForceStartWithoutConfig, s.Settings.HealthyWithAtLeastOne
	h.onChange, h.onReady, h.storeNote = s.front.grpc.SetServing, s.announceReady, s.store.note
	h.worksWithoutStore = s.worksWithoutStore(nil)
	if len(s.store.pools) == 0 {
		h.stores = []storeHealth{{name: "memory", answered: true}}
	}
	for _, p := range s.store.pools {
		h.stores = append(h.stores, storeHealth{name: p.name, label: p.label, note: p.note, err: errStoreUnknown})
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

// firstProblem returns err in one line: its first problem, or its first line.
func firstProblem(err error) string {
	var problems rules.Problems
	if errors.As(err, &problems) && len(problems) > 1 {
		return problems[0].String() + " (and more, see the log)"
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// plural returns n and noun, such as "1 domain" or "2 domains".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
