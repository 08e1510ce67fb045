package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"ratelimit/src/operator"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/rules/reload"
)

// ruleState is the state of the rules of all sources. The lock of State guards it.
type ruleState struct {
	Config
	sources         []*Source
	firstLoadFields map[string]any // logged about the first rules, and nil before these.
}

// Source is the state of one source of rules. It is safe for concurrent use.
type Source struct {
	name  string
	state *State // its lock guards the fields below.

	inForce       *InForce // nil before the first rules.
	domainCount   int      // the number of domains of the rules in force.
	ruleCount     int      // the number of rules in force.
	lastLoadErr   error    // the error of the last load, or nil.
	lastRefusedAt time.Time
	streamErr     error // why there is no stream to the management server, or nil.
}

// InForce describes the rules in force, for figures.
type InForce struct {
	InForce bool // always true: a figure with the value 1.
	Loaded  time.Time
	Hash    string // of the names and contents of the rules.
	Version string // empty unless a management server sent the rules.
}

// AddSource adds a source of rules. Call it before Report.
func (s *State) AddSource(name string) *Source {
	src := &Source{name: name, state: s}
	s.rules.sources = append(s.rules.sources, src)
	return src
}

// Refused says that the last load had an error.
func (src *Source) Refused(err error, at time.Time) {
	src.state.update(func() { src.lastLoadErr, src.lastRefusedAt = err, at })
}

// Loaded says that the rules of a load of this source are in force, without those with problems. facts are logged if
// they are the first rules. It reports whether this load has repaired the last one.
func (src *Source) Loaded(l reload.Result, facts map[string]any) (repaired bool) {
	s := src.state
	s.update(func() {
		repaired = src.inForce != nil && src.lastLoadErr != nil && l.Err == nil
		src.lastLoadErr = l.Err
		src.domainCount, src.ruleCount = len(l.OwnSet.Domains()), len(l.OwnSet.Rules())
		src.inForce = &InForce{true, l.ReadTime, l.Hash, l.Version}
		if s.rules.firstLoadFields == nil && (s.rules.hasAll() || s.rules.HealthyBeforeRules) {
			s.rules.firstLoadFields = facts
		}
	})
	return repaired
}

// SetStream says why there is no stream to the management server, or with nil that there is one. It reports whether
// there was none before.
func (src *Source) SetStream(err error) (wasLost bool) {
	src.state.update(func() { wasLost, src.streamErr = src.streamErr != nil, err })
	return wasLost
}

// IsLoaded reports whether rules of this source are in force.
func (src *Source) IsLoaded() bool {
	return read(src.state, func() bool { return src.inForce != nil })
}

// AllOthersLoaded reports whether rules of all other sources are in force.
func (src *Source) AllOthersLoaded() bool {
	return read(src.state, func() bool { return src.state.rules.hasAllBut(src) })
}

// SourceFigures are the figures of one source among several.
type SourceFigures struct {
	Loaded  time.Time // zero before the first rules.
	Refused bool
	Domains int
}

// Figures returns the figures of the source.
func (src *Source) Figures() SourceFigures {
	return read(src.state, func() SourceFigures {
		f := SourceFigures{Refused: src.lastLoadErr != nil, Domains: src.domainCount}
		if src.inForce != nil {
			f.Loaded = src.inForce.Loaded
		}
		return f
	})
}

// component returns the state of the rules of one source.
func (src *Source) component(a Audience, healthyBeforeRules bool) operator.Component {
	c := operator.Component{Name: "rules from " + src.name, Note: output.Plural(src.domainCount, "domain")}
	isLoaded := src.inForce != nil
	switch {
	case !isLoaded:
	case src.domainCount == 0:
		c.Note += ", so everything passes"
	case src.ruleCount == 0:
		c.Note += ", 0 rules, so everything passes"
	}
	if isLoaded && src.inForce.Version != "" {
		c.Note += ", version " + src.inForce.Version
	}
	refused, stream := src.whyRefused(a), ""
	if src.streamErr != nil {
		stream = a.chooseText("there is no stream to the management server", rules.FirstProblem(src.streamErr))
	}
	waits := !isLoaded && !healthyBeforeRules
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
func (src *Source) whyRefused(a Audience) string {
	if src.lastLoadErr == nil {
		return ""
	}
	when := "refused at " + src.lastRefusedAt.UTC().Format(time.RFC3339)
	return a.chooseText(when, when+": "+rules.FirstProblem(src.lastLoadErr))
}

// hasAll reports whether all sources have loaded rules.
func (r *ruleState) hasAll() bool { return r.hasAllBut(nil) }

// hasAllBut reports whether all sources but src have loaded rules.
func (r *ruleState) hasAllBut(src *Source) bool {
	return !slices.ContainsFunc(r.sources, func(other *Source) bool { return other != src && other.inForce == nil })
}

// counts returns the numbers of domains and of rules in force.
func (r *ruleState) counts() (domains, ruleCount int) {
	for _, src := range r.sources {
		domains, ruleCount = domains+src.domainCount, ruleCount+src.ruleCount
	}
	return domains, ruleCount
}

// component returns the state of all rules. With several sources, components of their own have the details.
func (r *ruleState) component(a Audience) operator.Component {
	domains, _ := r.counts()
	c := operator.Component{Note: output.Plural(domains, "domain")}
	if len(r.sources) == 1 {
		c = r.sources[0].component(a, r.HealthyBeforeRules)
	}
	c.Name = "rules"
	if c.NotReadyReason == "" && r.NeedsDomain && domains == 0 && (r.hasAll() || r.HealthyBeforeRules) {
		c.NotReadyReason = "no domain is loaded"
	}
	return c
}

// refusals returns the sources whose last load was refused.
func (r *ruleState) refusals() (list []*Source) {
	for _, src := range r.sources {
		if src.lastLoadErr != nil {
			list = append(list, src)
		}
	}
	return list
}

// inForce returns what describes the rules of all sources, or nil before the first rules.
func (r *ruleState) inForce() *InForce {
	if len(r.sources) == 1 {
		return r.sources[0].inForce
	}
	var parts []reload.Part
	var versions []string
	all := &InForce{InForce: true}
	for _, src := range r.sources {
		if src.inForce == nil {
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

// HasAllRules reports whether all sources have loaded rules.
func (s *State) HasAllRules() bool { return read(s, s.rules.hasAll) }

// RulesInForce returns what describes the rules of all sources, or nil before the first rules.
func (s *State) RulesInForce() *InForce { return read(s, s.rules.inForce) }

// LoadedRules returns when the rules in force were loaded, their hash, and the problems of the last load.
func (s *State) LoadedRules() (l operator.LoadedRules) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.rules.inForce(); f != nil {
		l.LoadedAt, l.Hash = f.Loaded, f.Hash
	}
	for _, src := range s.rules.refusals() {
		l.Problems = append(l.Problems, strings.Split(src.lastLoadErr.Error(), "\n")...)
	}
	return l
}

// RefusalNotes returns a comment line for operators for each source whose last load was refused. The rules in force
// then differ from those of the source.
func (s *State) RefusalNotes() (lines string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, src := range s.rules.refusals() {
		state, from := "none are in force yet", ""
		if src.inForce != nil {
			state = "those below stay in force"
		}
		if len(s.rules.sources) > 1 {
			from = " from " + src.name
		}
		lines += fmt.Sprintf("# newer rules%s were %s (%s)\n", from, src.whyRefused(Operators), state)
	}
	return lines
}
