package health

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/operator"
	"ratelimit/src/rules"
	"ratelimit/src/service/store"
)

// Config is the configuration of a State.
type Config struct {
	HealthyBeforeRules bool // The process should receive traffic before it has rules, too.
	NeedsDomain        bool // makes the process unhealthy without any domain.
}

// State says whether this process should receive traffic, and if not, why. It becomes ready once, when requests are
// answered; it may change between healthy and unhealthy. It is safe for concurrent use after Report.
type State struct {
	events  Events
	store   func() store.State
	remarks []func(now time.Time) []operator.Component

	updating      sync.Mutex // held by update, so that the last call of OnChange has the newest state.
	mu            sync.Mutex // guards all fields below.
	rules         ruleState
	latePortErr   error    // nil if divvy's port is open or not needed.
	latePortAddr  net.Addr // nil unless divvy's port was opened after the start.
	isStopping    bool
	readyReported bool // set when OnReady is called.
}

// Events are called without the lock of a State, so they may read it. They must not change it.
type Events struct {
	OnChange func(healthy bool) // called after each change, in order.
	// OnReady is called once, when requests are answered. first is logged about the first rules. latePortAddr is the
	// address of divvy's port if it was opened after the start, else nil.
	OnReady func(first map[string]any, latePortAddr net.Addr)
}

// New returns the state before the first rules and the first answer of a store.
func New(cfg Config) *State {
	return &State{
		rules:  ruleState{Config: cfg},
		events: Events{OnChange: func(bool) {}, OnReady: func(map[string]any, net.Addr) {}},
	}
}

// WatchStore has s read the state of the store. Call it before Report.
func (s *State) WatchStore(state func() store.State) { s.store = state }

// AddRemarks adds components that never make the process unready, such as warnings. Call it before Report.
func (s *State) AddRemarks(remarks func(now time.Time) []operator.Component) {
	s.remarks = append(s.remarks, remarks)
}

// Report has s call e from now on: OnChange at once for the first time.
func (s *State) Report(e Events) {
	s.events = e
	s.Refresh()
}

// Refresh looks at the parts again, and reports what has changed.
func (s *State) Refresh() { s.update(func() {}) }

// Stop says that the process is shutting down.
func (s *State) Stop() { s.update(func() { s.isStopping = true }) }

// LatePortNeeded says that divvy's port is not open, although the rules need it.
func (s *State) LatePortNeeded(why error) { s.update(func() { s.latePortErr = why }) }

// LatePortOpened says that divvy's port was opened after the start.
func (s *State) LatePortOpened(at net.Addr) {
	s.update(func() { s.latePortErr, s.latePortAddr = nil, at })
}

// read returns the result of f, which reads the state of s.
func read[T any](s *State, f func() T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}

// Audience says for whom a text is written.
type Audience bool

const (
	Callers   Audience = false // reach the ports on which requests are answered.
	Operators Audience = true  // reach the debug port and the log.
)

// chooseText returns the text for an audience. Callers see no addresses, paths and texts of rules.
func (a Audience) chooseText(forCallers, forOperators string) string {
	if a == Operators {
		return forOperators
	}
	return forCallers
}

// update changes the state under the lock, and tells of it without the lock.
func (s *State) update(change func()) {
	s.updating.Lock()
	defer s.updating.Unlock()
	s.mu.Lock()
	change()
	healthy := s.whyUnhealthy(Callers) == ""
	becameReady := !s.readyReported && s.answersRequests()
	s.readyReported = s.readyReported || becameReady
	facts, late := s.rules.firstLoadFields, s.latePortAddr
	s.mu.Unlock()
	s.events.OnChange(healthy)
	if becameReady {
		s.events.OnReady(facts, late)
	}
}

// answersRequests says whether requests are answered: rules are in force, all ports are open and
// each store that is needed has answered once.
func (s *State) answersRequests() bool {
	st := s.store()
	silent := func(p store.PoolState) bool { return !p.HasAnswered }
	return s.rules.firstLoadFields != nil && s.latePortErr == nil &&
		(st.WorksAlone || !slices.ContainsFunc(st.Pools, silent))
}

// UnhealthyReason returns why this process should receive no traffic, in one line; "" if it should.
func (s *State) UnhealthyReason(a Audience) string {
	return read(s, func() string { return s.whyUnhealthy(a) })
}

// Components returns the state of each part.
func (s *State) Components(a Audience) []operator.Component {
	return read(s, func() []operator.Component { return s.components(a) })
}

// components returns the states of the process, the rules, each store, divvy's port if it is not open, and each of
// several sources, with remarks and warnings that do not count. The caller holds s.mu.
func (s *State) components(a Audience) []operator.Component {
	list := []operator.Component{{Name: "process"}, s.rules.component(a)}
	if s.isStopping {
		list[0].NotReadyReason = "shutting down"
	}
	st := s.store()
	for _, p := range st.Pools {
		c := operator.Component{Name: p.Name, Note: p.Note}
		if p.Err != nil {
			c.NotReadyReason = a.chooseText(p.Err.ForCallers, rules.FirstProblem(p.Err))
		}
		if p.Err != nil && st.WorksAlone {
			c.Note, c.NotReadyReason = c.NotReadyReason+"; on_store_failure decides", ""
		}
		list = append(list, c)
	}
	if st.DegradedNote != "" {
		list = append(list, operator.Component{Name: "counting", Note: st.DegradedNote})
	}
	if s.latePortErr != nil {
		list = append(list, operator.Component{
			Name:           "divvy",
			NotReadyReason: a.chooseText("divvy's port is not open", s.latePortErr.Error()),
		})
	}
	if len(s.rules.sources) > 1 {
		for _, src := range s.rules.sources {
			list = append(list, src.component(a, s.rules.HealthyBeforeRules))
		}
	}
	now := time.Now()
	for _, remarks := range s.remarks {
		list = append(list, remarks(now)...)
	}
	return list
}

// whyUnhealthy returns why this process should receive no traffic, "" if it should. The process comes
// first, then the stores, divvy's port and the rules. The caller holds s.mu.
func (s *State) whyUnhealthy(a Audience) string {
	list := s.components(a)
	for _, c := range slices.Concat(list[:1], list[2:], list[1:2]) {
		if c.NotReadyReason != "" {
			return c.NotReadyReason
		}
	}
	return ""
}

// Figures are the figures of a State.
type Figures struct {
	Ready, Refused bool
	Domains, Rules int
}

// Figures returns the figures of all sources together.
func (s *State) Figures() Figures {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := Figures{Ready: s.whyUnhealthy(Callers) == "", Refused: len(s.rules.refusals()) > 0}
	f.Domains, f.Rules = s.rules.counts()
	return f
}

// Probes returns the pages that say whether this process should receive traffic, by their paths.
func (s *State) Probes() map[string]http.Handler {
	return map[string]http.Handler{
		"/healthcheck": admin.HealthcheckHandler(func() string { return s.UnhealthyReason(Callers) }),
		"/livez":       admin.LiveHandler(),
		"/readyz":      admin.ReadyHandler(func() []operator.Component { return s.Components(Callers) }),
	}
}

// AddProbes adds the probes to mux, and returns it.
func (s *State) AddProbes(mux *http.ServeMux) *http.ServeMux {
	for path, page := range s.Probes() {
		mux.Handle(path, page)
	}
	return mux
}
