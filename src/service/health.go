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

// health says whether this process should receive traffic, and if not, why.
type health struct {
	startEmpty bool                                          // healthy before the first rules
	needDomain bool                                          // unhealthy without any domain
	onChange   func(healthy bool)                            // called after each update, in order
	onReady    func(first logrus.Fields, lateDivvy net.Addr) // called once, when requests are answered
	note       func(time.Time) string                        // remark about stores that need not make the process unready

	mu        sync.Mutex // guards all fields below
	storeless bool       // stores that do not answer do not make the process unhealthy
	loaded    bool       // rules were loaded at least once
	domains   int        // of the rules in force
	version   string     // of the rules in force; empty unless they come from a management server
	refused   error      // why the last load failed; nil if it did not
	refusedAt time.Time
	stream    error // why there is no stream to the management server; nil if there is, or rules are files
	stores    []storeHealth
	divvy     error // why divvy's port is not open; nil if it is, or is not needed
	stopping  bool

	firstRules logrus.Fields // facts about the first rules; nil before these
	lateDivvy  net.Addr      // of divvy's port if it was opened after the others
	readySaid  bool          // onReady was called
	telling    bool          // a goroutine calls onChange
	changed    bool          // and must call it again
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

// prefixed returns r with text before it.
func (r reason) prefixed(text string) reason { return reason{text + r.class, text + r.full} }

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
	h.changed = true
	if h.telling {
		return
	}
	h.telling = true
	for h.changed {
		h.changed = false
		healthy := h.why() == reason{}
		becameReady := !h.readySaid && h.answers()
		h.readySaid = h.readySaid || becameReady
		facts, late := h.firstRules, h.lateDivvy
		h.mu.Unlock()
		h.onChange(healthy)
		if becameReady {
			h.onReady(facts, late)
		}
		h.mu.Lock()
	}
	h.telling = false
}

// answers says whether requests are answered: rules are in force, all ports are open and
// each store that is needed has answered once.
func (h *health) answers() bool {
	silent := func(st storeHealth) bool { return !st.answered }
	return h.firstRules != nil && h.divvy == nil && (h.storeless || !slices.ContainsFunc(h.stores, silent))
}

// reason returns why this process should receive no traffic, in one line; "" if it should.
func (h *health) reason(a audience) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.why().to(a)
}

// components returns the state of each part, with remarks that do not count.
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

// states returns the components that need the lock, the stores last, and why divvy's port
// is not open.
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
		rules.Note += ", " + h.whyRefused().prefixed("the last load was ").to(a)
	}
	if h.stream != nil && rules.Why == "" {
		rules.Note += ", " + h.whyStream().to(a)
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
	return list, h.whyDivvy().to(a)
}

const shuttingDown = "shutting down"

func (h *health) why() reason {
	if h.stopping {
		return same(shuttingDown)
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
		return h.whyRefused().prefixed("no rules are loaded: ")
	case !h.loaded && !h.startEmpty && h.stream != nil:
		return h.whyStream().prefixed("no rules are loaded: ")
	case !h.loaded && !h.startEmpty:
		return same("the rules are not loaded yet")
	case h.needDomain && h.domains == 0:
		return same("no domain is loaded")
	}
	return reason{}
}

func (h *health) whyRefused() reason {
	when := "refused at " + h.refusedAt.UTC().Format(time.RFC3339)
	return reason{when, when + ": " + firstProblem(h.refused)}
}

func (h *health) whyStream() reason {
	return reason{"there is no stream to the management server", firstProblem(h.stream)}
}

func (h *health) whyDivvy() reason {
	if h.divvy == nil {
		return reason{}
	}
	return reason{"divvy's port is not open", h.divvy.Error()}
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

// noteRefused writes a comment line for operators if the last load was refused: the rules
// in force are not those of the files then.
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

// buildHealth sets the state before the first rules and the first answer of a store.
func (s *Service) buildHealth() {
	h := &s.health
	h.startEmpty, h.needDomain = s.Settings.ForceStartWithoutConfig, s.Settings.HealthyWithAtLeastOne
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
