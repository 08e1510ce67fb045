package service

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/operator"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/rules/reload"
	"ratelimit/src/service/store"
	"ratelimit/src/settings"
)

// health says whether this process should receive traffic, and if not, why. It becomes
// ready once, when requests are answered; it may change between healthy and unhealthy.
type health struct {
	onChange   func(healthy bool)                                // called after each update, in order.
	onReady    func(first logrus.Fields, lateDivvyAddr net.Addr) // called once, when requests are answered.
	storeState func() store.State
	// warnings returns what is wrong beside the parts, which stay ready. It may be nil.
	warnings func(now time.Time) []operator.Component

	updating      sync.Mutex // held by update, so that the last call of onChange has the newest state.
	mu            sync.Mutex // guards all fields below.
	rules         ruleHealth
	divvyPortErr  error    // nil if divvy's port is open or not needed.
	lateDivvyAddr net.Addr // nil unless divvy's port was opened after the start.
	isStopping    bool
	readyReported bool // set when onReady is called.
}

// read returns the result of f, which reads the state of h.
func read[T any](h *health, f func() T) T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return f()
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
	ruleCount     int           // the number of rules in force.
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

// update changes the state under the lock, and calls onChange and onReady without it. These may read the state, and
// must not update it.
func (h *health) update(change func(*health)) {
	h.updating.Lock()
	defer h.updating.Unlock()
	h.mu.Lock()
	change(h)
	healthy := h.whyUnhealthy(callers) == ""
	becameReady := !h.readyReported && h.answersRequests()
	h.readyReported = h.readyReported || becameReady
	facts, late := h.rules.firstLoadFields, h.lateDivvyAddr
	h.mu.Unlock()
	h.onChange(healthy)
	if becameReady {
		h.onReady(facts, late)
	}
}

// answersRequests says whether requests are answered: rules are in force, all ports are open and
// each store that is needed has answered once.
func (h *health) answersRequests() bool {
	st := h.storeState()
	silent := func(p store.PoolState) bool { return !p.HasAnswered }
	return h.rules.firstLoadFields != nil && h.divvyPortErr == nil &&
		(st.WorksAlone || !slices.ContainsFunc(st.Pools, silent))
}

// unhealthyReason returns why this process should receive no traffic, in one line; "" if it should.
func (h *health) unhealthyReason(a audience) string {
	return read(h, func() string { return h.whyUnhealthy(a) })
}

// components returns the state of each part.
func (h *health) components(a audience) []operator.Component {
	return read(h, func() []operator.Component { return h.partStates(a) })
}

// partStates returns the states of the process, the rules, each store, divvy's port if it is not open, and each of
// several sources, with remarks and warnings that do not count. The caller holds h.mu.
func (h *health) partStates(a audience) []operator.Component {
	list := []operator.Component{{Name: "process"}, h.rules.component(a)}
	if h.isStopping {
		list[0].NotReadyReason = "shutting down"
	}
	st := h.storeState()
	for _, p := range st.Pools {
		c := operator.Component{Name: p.Name, Note: p.Note}
		if p.Err != nil {
			c.NotReadyReason = a.chooseText(p.Err.ForCallers, firstProblem(p.Err))
		}
		if p.Err != nil && st.WorksAlone {
			c.Note, c.NotReadyReason = c.NotReadyReason+"; on_store_failure decides", ""
		}
		list = append(list, c)
	}
	if st.DegradedNote != "" {
		list = append(list, operator.Component{Name: "counting", Note: st.DegradedNote})
	}
	if h.divvyPortErr != nil {
		list = append(list, operator.Component{
			Name:           "divvy",
			NotReadyReason: a.chooseText("divvy's port is not open", h.divvyPortErr.Error()),
		})
	}
	if len(h.rules.sources) > 1 {
		for _, src := range h.rules.sources {
			list = append(list, src.component(a, h.rules.healthyBeforeRules))
		}
	}
	if h.warnings != nil {
		list = append(list, h.warnings(time.Now())...)
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
func (r *ruleHealth) hasAll() bool { return r.hasAllBut(nil) }

// hasAllBut reports whether all sources but src have loaded rules.
func (r *ruleHealth) hasAllBut(src *sourceHealth) bool {
	return !slices.ContainsFunc(r.sources, func(other *sourceHealth) bool { return other != src && !other.isLoaded() })
}

func (r *ruleHealth) domainCount() (n int) {
	for _, src := range r.sources {
		n += src.domainCount
	}
	return n
}

func (r *ruleHealth) ruleCount() (n int) {
	for _, src := range r.sources {
		n += src.ruleCount
	}
	return n
}

// component returns the state of all rules. With several sources, components of their own have the details.
func (r *ruleHealth) component(a audience) operator.Component {
	domains := r.domainCount()
	c := operator.Component{Note: output.Plural(domains, "domain")}
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
	c := operator.Component{Name: "rules from " + src.name, Note: output.Plural(src.domainCount, "domain")}
	switch {
	case !src.isLoaded():
	case src.domainCount == 0:
		c.Note += ", so everything passes"
	case src.ruleCount == 0:
		c.Note += ", 0 rules, so everything passes"
	}
	if src.isLoaded() && src.inForce.Version != "" {
		c.Note += ", version " + src.inForce.Version
	}
	refused, stream := src.whyRefused(a), ""
	if src.streamErr != nil {
		stream = a.chooseText("there is no stream to the management server", firstProblem(src.streamErr))
	}
	waits := !src.isLoaded() && !healthyBeforeRules
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

func (src *sourceHealth) isLoaded() bool { return src.inForce != nil }

func (src *sourceHealth) lacksStream() bool { return src.streamErr != nil }

// sourceFigures are the figures of one source among several.
type sourceFigures struct {
	Loaded  time.Time // zero before the first rules.
	Refused bool
	Domains int
}

// figures returns the figures of the source. The caller holds the lock of health.
func (src *sourceHealth) figures() sourceFigures {
	f := sourceFigures{Refused: src.lastLoadErr != nil, Domains: src.domainCount}
	if src.isLoaded() {
		f.Loaded = src.inForce.Loaded
	}
	return f
}

type healthFigures struct {
	Ready, Refused bool
	Domains, Rules int
}

// figures returns the figures of all sources together. The caller holds the lock.
func (h *health) figures() healthFigures {
	return healthFigures{
		Ready: h.whyUnhealthy(callers) == "", Refused: len(h.rules.refusals()) > 0,
		Domains: h.rules.domainCount(), Rules: h.rules.ruleCount(),
	}
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

// inForce returns what describes the rules of all sources, or nil before the first rules.
func (r *ruleHealth) inForce() *rulesInForce {
	if len(r.sources) == 1 {
		return r.sources[0].inForce
	}
	var parts []reload.Part
	var versions []string
	all := &rulesInForce{InForce: true}
	for _, src := range r.sources {
		if !src.isLoaded() {
			continue
		}
		if src.inForce.Loaded.After(all.Loaded) {
			all.Loaded = src.inForce.Loaded
		}
		if src.inForce.Version != "" {
			versions = append(versions, src.inForce.Version)
		}
		parts = append(parts, reload.Part{Name: src.name, Data: []byte(src.inForce.Hash)})
	}
	if len(parts) == 0 {
		return nil
	}
	all.Hash, all.Version = reload.HashOfParts(parts)[:16], strings.Join(versions, ", ")
	return all
}

// refusalNotes returns a comment line for operators for each source whose last load was refused. The rules in force
// then differ from those of the source.
func (h *health) refusalNotes() (lines string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, src := range h.rules.refusals() {
		state, from := "none are in force yet", ""
		if src.isLoaded() {
			state = "those below stay in force"
		}
		if len(h.rules.sources) > 1 {
			from = " from " + src.name
		}
		lines += fmt.Sprintf("# newer rules%s were %s (%s)\n", from, src.whyRefused(operators), state)
	}
	return lines
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

// report has h call onChange from now on, at once for the first time, and onReady once.
func (h *health) report(onChange func(healthy bool), onReady func(first logrus.Fields, lateDivvyAddr net.Addr)) {
	h.onChange, h.onReady = onChange, onReady
	h.update(func(*health) {})
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
