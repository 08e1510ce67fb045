package service

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/operator"
	"ratelimit/src/rules"
	"ratelimit/src/rules/reload"
	"ratelimit/src/settings"
)

// health says whether this process should receive traffic, and if not, why. It becomes
// ready once, when requests are answered; it may change between healthy and unhealthy.
type health struct {
	onChange func(healthy bool)                                // called after each update, in order.
	onReady  func(first logrus.Fields, lateDivvyAddr net.Addr) // called once, when requests are answered.
	// returns a remark about hits that the store did not answer, or "".
	degradedNote func(time.Time) string

	mu                  sync.Mutex // guards all fields below.
	rules               ruleHealth
	stores              []storeHealth
	healthyWithoutStore bool
	divvy               divvyHealth
	isStopping          bool
	isReporting         bool // set while a goroutine calls onChange and onReady.
	mustReport          bool // set if onChange must be called again.
	readyReported       bool // set when onReady is called.
}

type ruleHealth struct {
	healthyBeforeRules bool
	needsDomain        bool            // makes the process unhealthy without any domain.
	sources            []*sourceHealth // one element for each source of rules.
	firstLoadFields    logrus.Fields   // logged about the first rules, and nil before these.
}

// sourceHealth is the state of one source of rules. The lock of health guards all fields but name.
type sourceHealth struct {
	name          string
	inForce       *rulesInForce // nil before the first rules.
	domainCount   int           // the number of domains of the rules in force.
	lastLoadErr   error         // the error of the last load, or nil.
	lastRefusedAt time.Time
	streamErr     error // why there is no stream to the management server, or nil.
}

// rulesInForce describes the rules in force, for figures.
type rulesInForce struct {
	InForce bool // always true: a figure with the value 1.
	Loaded  time.Time
	Hash    string // of the names and contents of the rules.
	Version string // empty unless a management server sent the rules.
}

type divvyHealth struct {
	portErr  error    // nil if the port is open or not needed.
	lateAddr net.Addr // nil unless the port was opened after the start.
}

type storeHealth struct {
	name        string        // of the component on /readyz.
	note        func() string // returns a remark that does not make the process unready. It may be nil.
	lastErr     *storeError   // nil if the store answered last time.
	hasAnswered bool          // set if the store has answered at least once.
	changedAt   time.Time     // when the store last began or ceased to answer pings. It is zero before the first answer.
}

// audience says for whom a text is written.
type audience bool

const (
	callers   audience = false // reach the ports on which requests are answered.
	operators audience = true  // reach the debug port and the log.
)

// chooseText returns the text for an audience. Callers see no addresses, paths and texts of rules.
func (a audience) chooseText(forCallers, forOperators string) string {
	if a == operators {
		return forOperators
	}
	return forCallers
}

// storeError says why a store cannot be used.
type storeError struct{ forCallers, forOperators string }

func (e *storeError) Error() string { return e.forOperators }

// errStoreNotAskedYet is the state before the store was asked.
var errStoreNotAskedYet = &storeError{"the store has not answered yet", "the store has not answered yet"}

// update changes the state under the lock, and calls onChange and onReady without it. If several goroutines update at a
// time, one of them makes the calls, so the last call of onChange always has the newest state.
func (h *health) update(change func(*health)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
	h.mustReport = true
	for h.mustReport && !h.isReporting {
		h.mustReport, h.isReporting = false, true
		healthy := h.whyUnhealthy(callers) == ""
		becameReady := !h.readyReported && h.answersRequests()
		h.readyReported = h.readyReported || becameReady
		facts, late := h.rules.firstLoadFields, h.divvy.lateAddr
		h.mu.Unlock()
		h.onChange(healthy)
		if becameReady {
			h.onReady(facts, late)
		}
		h.mu.Lock()
		h.isReporting = false
	}
}

// answersRequests says whether requests are answered: rules are in force, all ports are open and
// each store that is needed has answered once.
func (h *health) answersRequests() bool {
	silent := func(st storeHealth) bool { return !st.hasAnswered }
	return h.rules.firstLoadFields != nil && h.divvy.portErr == nil &&
		(h.healthyWithoutStore || !slices.ContainsFunc(h.stores, silent))
}

// unhealthyReason returns why this process should receive no traffic, in one line; "" if it should.
func (h *health) unhealthyReason(a audience) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.whyUnhealthy(a)
}

// components returns the state of each part, with remarks that do not count.
func (h *health) components(a audience) []operator.Component {
	h.mu.Lock()
	list := h.partStates(a)
	h.mu.Unlock()
	for i := range h.stores { // The functions note never change, so reading them needs no lock.
		if c, note := &list[2+i], h.stores[i].note; c.Note == "" && note != nil {
			c.Note = note()
		}
	}
	if note := h.degradedNote(time.Now()); note != "" {
		list = slices.Insert(list, 2+len(h.stores), operator.Component{Name: "counting", Note: note})
	}
	return list
}

const shuttingDown = "shutting down"

// partStates returns the states of the process, the rules, each store, divvy's port if it is not open, and each of
// several sources. The caller holds h.mu.
func (h *health) partStates(a audience) []operator.Component {
	list := []operator.Component{{Name: "process"}, h.rules.component(a)}
	if h.isStopping {
		list[0].NotReadyReason = shuttingDown
	}
	for _, st := range h.stores {
		c := operator.Component{Name: st.name}
		if st.lastErr != nil {
			c.NotReadyReason = a.chooseText(st.lastErr.forCallers, firstProblem(st.lastErr))
		}
		if c.NotReadyReason != "" && h.healthyWithoutStore {
			c.Note, c.NotReadyReason = c.NotReadyReason+"; on_store_failure decides", ""
		}
		list = append(list, c)
	}
	if h.divvy.portErr != nil {
		list = append(list, operator.Component{
			Name:           "divvy",
			NotReadyReason: a.chooseText("divvy's port is not open", h.divvy.portErr.Error()),
		})
	}
	if len(h.rules.sources) > 1 {
		for _, src := range h.rules.sources {
			list = append(list, src.component(a, h.rules.healthyBeforeRules))
		}
	}
	return list
}

// whyUnhealthy returns why this process should receive no traffic, "" if it should. The process comes
// first, then the stores, divvy's port and the rules. The caller holds h.mu.
func (h *health) whyUnhealthy(a audience) string {
	list := h.partStates(a)
	for _, c := range slices.Concat(list[:1], list[2:], list[1:2]) {
		if c.NotReadyReason != "" {
			return c.NotReadyReason
		}
	}
	return ""
}

// hasAll reports whether all sources have loaded rules.
func (r *ruleHealth) hasAll() bool {
	return !slices.ContainsFunc(r.sources, func(src *sourceHealth) bool { return src.inForce == nil })
}

func (r *ruleHealth) domainCount() (n int) {
	for _, src := range r.sources {
		n += src.domainCount
	}
	return n
}

// component returns the state of all rules. With several sources, components of their own have the details.
func (r *ruleHealth) component(a audience) operator.Component {
	domains := r.domainCount()
	c := operator.Component{Name: "rules", Note: plural(domains, "domain")}
	if len(r.sources) == 1 {
		c = r.sources[0].component(a, r.healthyBeforeRules)
	}
	c.Name = "rules"
	if c.NotReadyReason == "" && r.needsDomain && domains == 0 && (r.hasAll() || r.healthyBeforeRules) {
		c.NotReadyReason = "no domain is loaded"
	}
	return c
}

// component returns the state of the rules of one source.
func (src *sourceHealth) component(a audience, healthyBeforeRules bool) operator.Component {
	c := operator.Component{Name: "rules from " + src.name, Note: plural(src.domainCount, "domain")}
	if src.inForce != nil && src.domainCount == 0 {
		c.Note += ", so everything passes"
	}
	if src.inForce != nil && src.inForce.Version != "" {
		c.Note += ", version " + src.inForce.Version
	}
	refused, stream := src.whyRefused(a), ""
	if src.streamErr != nil {
		stream = a.chooseText("there is no stream to the management server", firstProblem(src.streamErr))
	}
	waits := src.inForce == nil && !healthyBeforeRules
	switch {
	case waits && refused+stream != "":
		c.NotReadyReason = "no rules are loaded: " + cmp.Or(refused, stream)
	case waits:
		c.NotReadyReason = "the rules are not loaded yet"
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
func (src *sourceHealth) whyRefused(a audience) string {
	if src.lastLoadErr == nil {
		return ""
	}
	when := "refused at " + src.lastRefusedAt.UTC().Format(time.RFC3339)
	return a.chooseText(when, when+": "+firstProblem(src.lastLoadErr))
}

// isLoaded reports whether the source has loaded rules.
func (src *sourceHealth) isLoaded(h *health) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return src.inForce != nil
}

// sourceFigures are the figures of one source among several.
type sourceFigures struct {
	Loaded  time.Time // zero before the first rules.
	Refused bool
	Domains int
}

// figures returns a function that reads the figures of the source.
func (src *sourceHealth) figures(h *health) func() sourceFigures {
	return func() (f sourceFigures) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if src.inForce != nil {
			f.Loaded = src.inForce.Loaded
		}
		f.Refused, f.Domains = src.lastLoadErr != nil, src.domainCount
		return f
	}
}

type healthFigures struct {
	Ready, Refused bool
	Domains        int
}

func (h *health) figures() healthFigures {
	h.mu.Lock()
	defer h.mu.Unlock()
	return healthFigures{h.whyUnhealthy(callers) == "", len(h.rules.refusals()) > 0, h.rules.domainCount()}
}

// refusals returns the sources whose last load was refused.
func (r *ruleHealth) refusals() (list []*sourceHealth) {
	for _, src := range r.sources {
		if src.lastLoadErr != nil {
			list = append(list, src)
		}
	}
	return list
}

// hasAllRulesWith reports whether all sources but src have loaded rules.
func (h *health) hasAllRulesWith(src *sourceHealth) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !slices.ContainsFunc(h.rules.sources,
		func(other *sourceHealth) bool { return other != src && other.inForce == nil })
}

func (h *health) hasAllRules() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rules.hasAll()
}

// rulesInForce returns what describes the rules of all sources, or nil before the first rules.
func (h *health) rulesInForce() *rulesInForce {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rules.inForce()
}

// inForce does what health.rulesInForce does. The caller holds the lock.
func (r *ruleHealth) inForce() *rulesInForce {
	if len(r.sources) == 1 {
		return r.sources[0].inForce
	}
	var all *rulesInForce
	var parts []reload.Part
	var versions []string
	for _, src := range r.sources {
		if src.inForce == nil {
			continue
		}
		if all == nil {
			all = &rulesInForce{InForce: true}
		}
		if src.inForce.Loaded.After(all.Loaded) {
			all.Loaded = src.inForce.Loaded
		}
		if src.inForce.Version != "" {
			versions = append(versions, src.inForce.Version)
		}
		parts = append(parts, reload.Part{Name: src.name, Data: []byte(src.inForce.Hash)})
	}
	if all != nil {
		all.Hash, all.Version = reload.HashOfParts(parts)[:16], strings.Join(versions, ", ")
	}
	return all
}

// writeRefusal writes a comment line for operators for each source whose last load was refused. The rules in force then
// differ from those of the source.
func (h *health) writeRefusal(w io.Writer) error {
	h.mu.Lock()
	var lines []string
	for _, src := range h.rules.refusals() {
		state := "none are in force yet"
		if src.inForce != nil {
			state = "those below stay in force"
		}
		from := ""
		if len(h.rules.sources) > 1 {
			from = " from " + src.name
		}
		lines = append(lines, fmt.Sprintf("# newer rules%s were %s (%s)\n", from, src.whyRefused(operators), state))
	}
	h.mu.Unlock()
	_, err := io.WriteString(w, strings.Join(lines, ""))
	return err
}

// probes are the pages that say whether this process should receive traffic.
func (h *health) probes() map[string]http.Handler {
	return map[string]http.Handler{
		"/healthcheck": admin.HealthcheckHandler(func() string { return h.unhealthyReason(callers) }),
		"/livez":       admin.LiveHandler(),
		"/readyz":      admin.ReadyHandler(func() []operator.Component { return h.components(callers) }),
	}
}

// handleProbes adds the probes to mux, and returns it.
func (h *health) handleProbes(mux *http.ServeMux) *http.ServeMux {
	for path, page := range h.probes() {
		mux.Handle(path, page)
	}
	return mux
}

// newHealth returns the state before the first rules and the first answer of a store.
func newHealth(cfg *settings.Settings) *health {
	h := &health{onChange: func(bool) {}, onReady: func(logrus.Fields, net.Addr) {}}
	h.rules.healthyBeforeRules, h.rules.needsDomain = cfg.ForceStartWithoutConfig, cfg.HealthyWithAtLeastOne
	return h
}

// useStore adds the state of the pools of a store, or that of memory.
func (h *health) useStore(s *store) {
	h.degradedNote, h.healthyWithoutStore = s.degradedNote, s.healthyWithoutStore(nil)
	if len(s.pools) == 0 {
		h.stores = []storeHealth{{name: "memory", hasAnswered: true}}
	}
	for _, p := range s.pools {
		h.stores = append(h.stores, storeHealth{name: p.name, note: p.healthNote, lastErr: errStoreNotAskedYet})
	}
}

// report has h call onChange from now on, at once for the first time, and onReady once.
func (h *health) report(onChange func(healthy bool), onReady func(first logrus.Fields, lateDivvyAddr net.Addr)) {
	h.onChange, h.onReady = onChange, onReady
	h.update(func(*health) {})
}

// announceReady logs the one line that says that requests are answered. first are facts about the first rules.
func (s *Service) announceReady(first logrus.Fields, lateDivvy net.Addr) {
	line := s.log.alwaysShown.WithFields(first).WithFields(s.servers.ports.Addresses()).WithField("store",
		s.Settings.BackendType)
	if lateDivvy != nil {
		line = line.WithField("divvy", lateDivvy.String())
	}
	line.Info("ready")
	if s.OnReady != nil {
		s.OnReady(Ready{
			Stdout: s.Output.outQueue.Important(), Rules: s.rules(), HTTPAddr: s.Addr("http"),
			DebugAddr: s.Addr("debug"), DivvyAddr: s.Addr("divvy"),
		})
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
