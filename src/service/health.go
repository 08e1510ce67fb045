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
	onChange     func(healthy bool)                                // onChange is called after each update, in order.
	onReady      func(first logrus.Fields, lateDivvyAddr net.Addr) // onReady is called once, when requests are answered.
	degradedNote func(time.Time) string                            // degradedNote returns a remark about hits that the store did not answer, or "".

	mu                  sync.Mutex // mu guards all fields below.
	rules               ruleHealth
	stores              []storeHealth
	healthyWithoutStore bool
	divvy               divvyHealth
	isStopping          bool
	isReporting         bool // isReporting is set while a goroutine calls onChange and onReady.
	mustReport          bool // mustReport is set if onChange must be called again.
	readyReported       bool // readyReported is set when onReady is called.
}

type ruleHealth struct {
	healthyBeforeRules bool
	needsDomain        bool          // needsDomain makes the process unhealthy without any domain.
	rulesInForce       *rulesInForce // rulesInForce is nil before the first rules.
	firstLoadFields    logrus.Fields // firstLoadFields are logged about the first rules, and nil before these.
	domainCount        int           // domainCount is the number of domains of the rules in force.
	lastLoadErr        error         // lastLoadErr is the error of the last load, or nil.
	lastRefusedAt      time.Time
	streamErr          error // streamErr is why there is no stream to the management server, or nil.
}

// rulesInForce describes the rules in force, for figures.
type rulesInForce struct {
	InForce bool // InForce is always true: a figure with the value 1.
	Loaded  time.Time
	Hash    string // Hash is that of the names and contents of the rules.
	Version string // Version is empty unless a management server sent the rules.
}

type divvyHealth struct {
	portErr  error    // portErr is nil if the port is open or not needed.
	lateAddr net.Addr // lateAddr is nil unless the port was opened after the start.
}

type storeHealth struct {
	name        string        // name is that of the component on /readyz.
	note        func() string // note returns a remark that does not make the process unready. It may be nil.
	lastErr     *storeError   // lastErr is nil if the store answered last time.
	hasAnswered bool          // hasAnswered is set if the store has answered at least once.
	changedAt   time.Time     // changedAt is when the store last began or ceased to answer pings. It is zero before the first answer.
}

// audience says for whom a text is written.
type audience bool

const (
	callers   audience = false // callers reach the ports on which requests are answered.
	operators audience = true  // operators reach the debug port and the log.
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

// update changes the state under the lock, and calls onChange and onReady without it. If several goroutines update at a time, one
// of them makes the calls, so the last call of onChange always has the newest state.
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
	return h.rules.firstLoadFields != nil && h.divvy.portErr == nil && (h.healthyWithoutStore || !slices.ContainsFunc(h.stores, silent))
}

// unhealthyReason returns why this process should receive no traffic, in one line; "" if it should.
func (h *health) unhealthyReason(a audience) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.whyUnhealthy(a)
}

// components returns the state of each part, with remarks that do not count.
func (h *health) components(a audience) []admin.Component {
	h.mu.Lock()
	list := h.partStates(a)
	h.mu.Unlock()
	for i := range h.stores { // The functions note never change, so reading them needs no lock.
		if c, note := &list[2+i], h.stores[i].note; c.Note == "" && note != nil {
			c.Note = note()
		}
	}
	if note := h.degradedNote(time.Now()); note != "" {
		list = slices.Insert(list, 2+len(h.stores), admin.Component{Name: "counting", Note: note})
	}
	return list
}

const shuttingDown = "shutting down"

// partStates returns the states of the process, the rules, each store, and divvy's port if it is not open. The caller holds h.mu.
func (h *health) partStates(a audience) []admin.Component {
	list := []admin.Component{{Name: "process"}, h.rules.component(a)}
	if h.isStopping {
		list[0].NotReadyReason = shuttingDown
	}
	for _, st := range h.stores {
		c := admin.Component{Name: st.name}
		if st.lastErr != nil {
			c.NotReadyReason = a.chooseText(st.lastErr.forCallers, firstProblem(st.lastErr))
		}
		if c.NotReadyReason != "" && h.healthyWithoutStore {
			c.Note, c.NotReadyReason = c.NotReadyReason+"; on_store_failure decides", ""
		}
		list = append(list, c)
	}
	if h.divvy.portErr != nil {
		list = append(list, admin.Component{Name: "divvy", NotReadyReason: a.chooseText("divvy's port is not open", h.divvy.portErr.Error())})
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

func (r *ruleHealth) component(a audience) admin.Component {
	c := admin.Component{Name: "rules", Note: plural(r.domainCount, "domain")}
	if r.rulesInForce != nil && r.domainCount == 0 {
		c.Note += ", so everything passes"
	}
	if r.rulesInForce != nil && r.rulesInForce.Version != "" {
		c.Note += ", version " + r.rulesInForce.Version
	}
	refused, stream := r.whyRefused(a), ""
	if r.streamErr != nil {
		stream = a.chooseText("there is no stream to the management server", firstProblem(r.streamErr))
	}
	waits := r.rulesInForce == nil && !r.healthyBeforeRules
	switch {
	case waits && refused+stream != "":
		c.NotReadyReason = "no rules are loaded: " + cmp.Or(refused, stream)
	case waits:
		c.NotReadyReason = "the rules are not loaded yet"
	case r.needsDomain && r.domainCount == 0:
		c.NotReadyReason = "no domain is loaded"
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
	if r.lastLoadErr == nil {
		return ""
	}
	when := "refused at " + r.lastRefusedAt.UTC().Format(time.RFC3339)
	return a.chooseText(when, when+": "+firstProblem(r.lastLoadErr))
}

type healthFigures struct {
	Ready, Refused bool
	Domains        int
}

func (h *health) figures() healthFigures {
	h.mu.Lock()
	defer h.mu.Unlock()
	return healthFigures{h.whyUnhealthy(callers) == "", h.rules.lastLoadErr != nil, h.rules.domainCount}
}

func (h *health) rulesInForce() *rulesInForce {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rules.rulesInForce
}

// writeRefusal writes a comment line for operators if the last load was refused. The rules in force then differ from the files.
func (h *health) writeRefusal(w io.Writer) error {
	h.mu.Lock()
	why, state := h.rules.whyRefused(operators), "none are in force yet"
	if h.rules.rulesInForce != nil {
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
	h.rules.healthyBeforeRules, h.rules.needsDomain = s.Settings.ForceStartWithoutConfig, s.Settings.HealthyWithAtLeastOne
	h.onChange, h.onReady, h.degradedNote = s.frontends.grpc.SetServing, s.announceReady, s.store.degradedNote
	h.healthyWithoutStore = s.healthyWithoutStore(nil)
	if len(s.store.pools) == 0 {
		h.stores = []storeHealth{{name: "memory", hasAnswered: true}}
	}
	for _, p := range s.store.pools {
		h.stores = append(h.stores, storeHealth{name: p.name, note: p.healthNote, lastErr: errStoreNotAskedYet})
	}
	h.update(func(*health) {})
}

// announceReady logs the one line that says that requests are answered. first are facts about the first rules.
func (s *Service) announceReady(first logrus.Fields, lateDivvy net.Addr) {
	line := s.log.alwaysShown.WithFields(first).WithFields(s.ports.addresses()).WithField("store", s.Settings.BackendType)
	if lateDivvy != nil {
		line = line.WithField("divvy", lateDivvy.String())
	}
	line.Info("ready")
	if s.OnReady != nil {
		s.OnReady(Ready{Stdout: s.Output.outQueue.Important(), Rules: s.limiter.Rules(), HTTPAddr: s.Addr("http"), DebugAddr: s.Addr("debug"), DivvyAddr: s.Addr("divvy")})
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
