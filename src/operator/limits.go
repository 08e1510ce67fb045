package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/overrides"
	"ratelimit/src/overrides/asrules"
	"ratelimit/src/rules"
	"ratelimit/src/settings/units"
)

// LimitChange says how to change the limit of a subject, see package overrides.
type LimitChange struct {
	// Action is set or unset.
	Action string `json:"action"`
	Domain string `json:"domain"`
	// Rule is the name of a rule or of one limit of it, with or without the domain. Subject may then also be a descriptor
	// that the rule charges. If Rule is empty, the rule is the one that applies to a request with Subject as its
	// descriptor, or the only one that counts by its keys.
	Rule string `json:"rule,omitempty"`
	// AllRules means all rules of the domain that count the subject. It excludes Rule.
	AllRules bool `json:"all_rules,omitempty"`
	// Subject is written as the page, the log and commands print it, or as a pattern: user=al*, or user=eve,*
	Subject string `json:"subject"`
	// Limit is 1000/minute, 1000, x10 or ban. Only set has one.
	Limit string `json:"limit,omitempty"`
	// The change ends at Until, or after For, such as 24h or 7d. Without both it stays until it is unset.
	Until time.Time `json:"until,omitzero"`
	For   string    `json:"for,omitempty"`
	// Reason is required for set, but not for a dry run. Who defaults to the user of basic authentication, else to the
	// client's host.
	Reason string `json:"reason,omitempty"`
	Who    string `json:"who,omitempty"`
	// DryRun changes nothing, and only reports.
	DryRun bool `json:"dry_run,omitempty"`
}

// LimitReport is the result of a LimitChange.
type LimitReport struct {
	Action string `json:"action"`
	DryRun bool   `json:"dry_run,omitempty"`
	// Override is what was set or removed, and Before what was there; nil for nothing.
	Override overrides.Override  `json:"override"`
	Before   *overrides.Override `json:"before,omitempty"`
	// Limits are those that change for the subject now. A pattern has those of the rules that it may apply to, without
	// counts, at most MaxNames.
	Limits []LimitEffect `json:"limits,omitempty"`
	// Subjects is how many subjects that a pattern names have a counter now. Only a dry run counts them. It is nil if that
	// is not known, and the least number if SubjectsAtLeast.
	Subjects        *int `json:"subjects,omitempty"`
	SubjectsAtLeast bool `json:"subjects_at_least,omitempty"`
	// Warnings say what the change does not do.
	Warnings []string `json:"warnings,omitempty"`
}

// LimitEffect is what a change does to one limit.
type LimitEffect struct {
	Rule   string `json:"rule"`
	Before string `json:"before"` // the limit before the change, for people
	After  string `json:"after"`  // the limit after it
	// Used and Remaining are those of the subject's counter with the limit after the change; nil if they are not known.
	Used      *uint64 `json:"used,omitempty"`
	Remaining *uint64 `json:"remaining,omitempty"`
}

// LimitList is what /api/limits answers to a GET.
type LimitList struct {
	// Count is the number of changes in force; Limits lists at most as many as the query asks for.
	Count   int                  `json:"count"`
	Limits  []overrides.Override `json:"limits"`
	History []overrides.Record   `json:"history,omitempty"` // the newest first, with ?history=true
}

// LimitEditor changes limits at run time.
type LimitEditor struct {
	Counters            *Editor
	*overrides.Registry // has the changes in force, and their history
	// Note says where changes are kept, if they do not survive; it is a warning of each set.
	Note string
	// OnChange is called after each change. err says why it failed.
	OnChange func(report *LimitReport, client Client, err error)
	// Now defaults to time.Now.
	Now func() time.Time

	searches atomic.Int32 // the number of searches for subjects that run now
}

// WriteRules writes the changes in force in a domain as rules, see package asrules.
func (e *LimitEditor) WriteRules(w io.Writer, domain string) error {
	set := e.Counters.Limiter.Rules()
	if set == nil {
		return limiter.ErrNoRules
	}
	d := set.Domain([]byte(domain))
	if d == nil {
		return Refuse(http.StatusUnprocessableEntity, "domain %s is not known", rules.Quote(domain))
	}
	return asrules.Write(w, d, e.Registry.List(domain))
}

func (e *LimitEditor) now() time.Time {
	if e.Now == nil {
		return time.Now()
	}
	return e.Now()
}

// Change performs c. An error that is a *Refusal is the client's.
func (e *LimitEditor) Change(ctx context.Context, c LimitChange, client Client) (*LimitReport, error) {
	ctx, cancel := context.WithTimeout(ctx, ChangeTimeout)
	defer cancel()
	o, err := e.override(&c, client)
	if err != nil {
		return nil, BadChange("%v", err)
	}
	set := e.Counters.Limiter.Rules()
	if set == nil {
		return nil, limiter.ErrNoRules
	}
	targets, err := targetsOf(set, &c, &o)
	if err != nil {
		return nil, err
	}
	report := &LimitReport{Action: c.Action, DryRun: c.DryRun, Override: o}
	if before, has := e.Registry.Get(o.ID()); has {
		report.Before = &before
	} else if c.Action == overrides.ActionUnset {
		return nil, Refuse(http.StatusConflict, "no change of a limit is in force for %s of %s; `ratelimit limit list` shows all",
			o.Subject, rules.Quote(o.Domain))
	}
	if c.Action == overrides.ActionUnset {
		report.Limits = e.effectsOfUnset(ctx, set, targets, &o)
	} else if report.Limits, err = e.effectsOfSet(ctx, targets, &o); err != nil {
		return nil, err
	}
	e.warn(report, targets)
	if c.DryRun {
		e.countSubjects(ctx, report, set, targets, c.Rule != "")
	} else {
		err = e.commit(ctx, report, client)
		e.OnChange(report, client, err)
	}
	if err != nil {
		return nil, clientError(err)
	}
	return report, nil
}

// override returns the override that c means, without its rule.
func (e *LimitEditor) override(c *LimitChange, client Client) (o overrides.Override, err error) {
	now := e.now()
	o = overrides.Override{
		Domain: c.Domain, Subject: c.Subject, Limit: c.Limit, Reason: strings.TrimSpace(c.Reason), Who: c.Who, Since: now,
		Until: c.Until,
	}
	if o.Who == "" {
		if o.Who = client.User; o.Who == "" {
			o.Who = client.Addr
			if host, _, err := net.SplitHostPort(client.Addr); err == nil {
				o.Who = host
			}
		}
	}
	switch {
	case c.Action != overrides.ActionSet && c.Action != overrides.ActionUnset:
		return o, fmt.Errorf("action %.100q is not known; write set or unset", c.Action)
	case c.Rule != "" && c.AllRules:
		return o, errors.New("rule and all_rules exclude each other")
	case c.Action == overrides.ActionUnset && (c.Limit != "" || c.For != "" || !c.Until.IsZero()):
		return o, errors.New("limit, for and until belong to the action set")
	case c.Action == overrides.ActionUnset:
		o.Limit = overrides.Ban.String() // Canonical needs one. The override that is removed has another one.
	case c.Limit == "":
		return o, errors.New("limit is missing; write 1000/minute, x10 or ban")
	case o.Reason == "" && !c.DryRun:
		return o, errors.New("reason is missing; say why, for those who see the change later")
	case c.For != "" && !c.Until.IsZero():
		return o, errors.New("for and until exclude each other")
	}
	if c.For != "" {
		d, err := units.Duration(c.For)
		if err != nil || d <= 0 {
			return o, fmt.Errorf("for is %.100q; write a duration, such as 2h or 7d", c.For)
		}
		o.Until = now.Add(d)
	}
	switch {
	case !o.Until.IsZero() && !o.Until.After(now):
		return o, fmt.Errorf("until is %s, which is in the past", o.Until.Format(time.RFC3339))
	case o.Until.Sub(now) > maxOverrideLife:
		return o, errors.New("until is more than 10 years away; leave it out for a change without an end")
	}
	return o.Canonical()
}

const maxOverrideLife = 10 * 366 * 24 * time.Hour

// commit makes the change of report, and sets Before.
func (e *LimitEditor) commit(ctx context.Context, report *LimitReport, client Client) error {
	edit := overrides.Edit{Override: report.Override, Remove: report.Action == overrides.ActionUnset, By: client.Addr}
	if edit.Remove {
		edit.Reason, edit.Who = report.Override.Reason, report.Override.Who
	}
	results, err := e.Registry.Commit(ctx, []overrides.Edit{edit})
	if err == nil {
		report.Before = results[0].Before
	}
	return err
}

// target is a limit that a change concerns, without the change.
type target struct {
	rule    *rules.Rule
	entries []rules.Entry // a request that is charged to it; nil for a pattern
}

// targetsOf finds the limits that c concerns, and sets the rule and the subject of o.
func targetsOf(set *rules.Set, c *LimitChange, o *overrides.Override) ([]target, error) {
	domain := set.Domain([]byte(c.Domain))
	if domain == nil {
		return nil, Refuse(http.StatusUnprocessableEntity, "domain %s is not known", rules.Quote(c.Domain))
	}
	pattern, err := overrides.ParsePattern(o.Subject)
	if err != nil {
		return nil, BadChange("subject: %v", err)
	}
	if domain.Form == rules.LimitTree && strings.HasSuffix(o.Subject, "*") {
		return nil, Refuse(http.StatusUnprocessableEntity, "subject %s: a tree of limits has no patterns: name all words of "+
			"the subject", rules.Quote(o.Subject))
	}
	if !c.AllRules && pattern.End == overrides.ExactEnd {
		if found := targetsOfRequest(domain, pattern.Entries, c.Rule, o); found != nil {
			return found, nil
		}
	}
	var named []target
	for _, r := range domain.Rules() {
		if c.Rule != "" && !isNamed(r, c.Rule) || !countsSubject(r, &pattern) {
			continue
		}
		t := target{rule: r}
		if pattern.End == overrides.ExactEnd {
			t.entries = requestOf(r, pattern.Entries)
		}
		named = append(named, t)
	}
	if len(named) == 0 {
		return nil, noTargets(domain, c, o)
	}
	switch first := named[0].rule; {
	case c.Rule != "":
		o.Rule = fullName(domain.Name, c.Rule)
	case c.AllRules || pattern.End != overrides.ExactEnd:
	case slices.ContainsFunc(named, func(t target) bool { return t.rule.Descriptor != first.Descriptor }):
		var names []string
		for _, t := range named[:min(len(named), MaxNames)] {
			names = append(names, t.rule.FullName)
		}
		return nil, BadChange("%s is a subject of several rules: name one, or all of them with all_rules; they are %s",
			o.Subject, strings.Join(names, ", "))
	default:
		o.Rule = first.Descriptor.FullName
	}
	return named, nil
}

func noTargets(domain *rules.Domain, c *LimitChange, o *overrides.Override) error {
	if c.Rule != "" && !slices.ContainsFunc(domain.Rules(), func(r *rules.Rule) bool { return isNamed(r, c.Rule) }) {
		return Refuse(http.StatusUnprocessableEntity, "domain %s has no rule %s; /rlconfig has all names", domain.Name,
			rules.Quote(c.Rule))
	}
	return Refuse(http.StatusUnprocessableEntity, "no limit of domain %s counts the subject %s; /explain says why", domain.Name,
		o.Subject)
}

// targetsOfRequest returns the limits that belong to the rule that a request with entries finds, or, with a name, those
// of the limits that the request is charged to. It returns nil if there are none.
func targetsOfRequest(domain *rules.Domain, entries []rules.Entry, name string,
	o *overrides.Override,
) (targets []target) {
	var scratch rules.SearchScratch
	scratch.Begin(context.Background())
	m := domain.BaseMatcher().FindRule(entries, &scratch)
	if m == nil || scratch.Err() != nil {
		return nil
	}
	for _, r := range m.Limits {
		if name == "" && r.Descriptor == m.Descriptor || name != "" && isNamed(r, name) {
			targets = append(targets, target{r, entries})
		}
	}
	if len(targets) == 0 {
		return nil
	}
	subject := overrides.Pattern{Entries: targets[0].rule.AppendCounterEntries(nil, entries)}
	o.Subject, o.Rule = subject.String(), m.Descriptor.FullName
	if name != "" {
		o.Rule = fullName(domain.Name, name)
	}
	return targets
}

// isNamed reports whether name is that of r, or of its descriptor, with or without the domain.
func isNamed(r *rules.Rule, name string) bool { return overrides.Names(fullName(r.Domain, name), r) }

// fullName returns name, which may lack the domain in front, with it.
func fullName(domain, name string) string {
	if strings.HasPrefix(name, domain+".") {
		return name
	}
	return domain + "." + name
}

// countsSubject reports whether counters of r can have a subject that p names.
func countsSubject(r *rules.Rule, p *overrides.Pattern) bool {
	keys := r.CounterKeys()
	return keys != nil && p.MayName(keys)
}

// requestOf returns entries of a request that is counted by r under the subject.
func requestOf(r *rules.Rule, subject []rules.Entry) []rules.Entry {
	if r.ListSettings == nil {
		return subject
	}
	request := slices.Clone(subject)
	for _, p := range r.ListSettings.MatchPairs {
		if !slices.ContainsFunc(request, func(e rules.Entry) bool { return string(e.Key) == p.Key }) {
			request = append(request, rules.Entry{Key: []byte(p.Key), Value: []byte(strings.ReplaceAll(p.Pattern, "*", ""))})
		}
	}
	return request
}

// effectsOfSet returns what the override does to the targets.
func (e *LimitEditor) effectsOfSet(ctx context.Context, targets []target, o *overrides.Override) (
	list []LimitEffect, err error,
) {
	change, err := overrides.ParseChange(o.Limit)
	if err != nil {
		return nil, BadChange("limit: %v", err)
	}
	pattern := targets[0].entries == nil
	if change.IsAbsolute() && !pattern && len(targets) > 1 {
		var names []string
		for _, t := range targets {
			name := t.rule.FullName
			if name == t.rule.Descriptor.FullName && t.rule.Name != "" { // The others have their name in it.
				name += "." + t.rule.Name
			}
			names = append(names, name)
		}
		return nil, BadChange("%s has %d limits: name one of them as the rule, or write a factor, such as x10; they are %s",
			o.Subject, len(targets), strings.Join(names, ", "))
	}
	var firstErr error
	for _, t := range targets {
		after, err := change.Of(t.rule)
		if err != nil {
			if firstErr == nil {
				firstErr = err
			}
			continue
		}
		if pattern && len(list) == MaxNames {
			break
		}
		list = append(list, e.effect(ctx, &t, after))
	}
	if len(list) == 0 {
		return nil, Refuse(http.StatusUnprocessableEntity, "%v", firstErr)
	}
	return list, nil
}

// effectsOfUnset returns what it does to the targets that the override o ends: they get the limit of their rule, or of
// another override, whose pattern names the subject, too.
func (e *LimitEditor) effectsOfUnset(ctx context.Context, set *rules.Set, targets []target, o *overrides.Override) (
	list []LimitEffect,
) {
	others := slices.DeleteFunc(e.Registry.List(o.Domain), func(other overrides.Override) bool {
		return other.ID() == o.ID() || other.Subject != o.Subject && !strings.HasSuffix(other.Subject, "*")
	})
	then, err := overrides.Apply(set, others)
	for _, t := range targets {
		after := t.rule
		switch {
		case t.entries == nil && len(list) == MaxNames:
			return list
		case t.entries != nil && err == nil:
			after = limitIn(then, &t)
		}
		list = append(list, e.effect(ctx, &t, after))
	}
	return list
}

// limitIn returns the limit of t that a request for its subject finds in set.
func limitIn(set *rules.Set, t *target) *rules.Rule {
	var scratch rules.SearchScratch
	scratch.Begin(context.Background())
	m := set.Domain([]byte(t.rule.Domain)).FindRule(t.entries, &scratch)
	if m != nil && scratch.Err() == nil {
		for _, r := range m.Limits {
			if r.FullName == t.rule.FullName {
				return r
			}
		}
	}
	return t.rule
}

// effect returns what the limit after does for the subject of t.
func (e *LimitEditor) effect(ctx context.Context, t *target, after *rules.Rule) LimitEffect {
	effect := LimitEffect{Rule: t.rule.FullName, Before: t.rule.LimitText(), After: after.LimitText()}
	if t.entries == nil {
		return effect
	}
	var a limiter.Answer
	req := limiter.Request{
		Domain: []byte(t.rule.Domain), Descriptors: []limiter.Descriptor{{Entries: t.entries}}, IgnoresHolds: true,
	}
	if e.Counters.Limiter.DryRun(ctx, &req, &a) != nil {
		return effect // The store does not answer.
	}
	for i := range a.Charges {
		c := &a.Charges[i]
		if c.Rule == nil || c.Rule.FullName != t.rule.FullName || c.Verdict.Err != nil {
			continue
		}
		effect.Before = c.Rule.LimitText()
		effect.Used, effect.Remaining = e.counted(ctx, a.Hits()[i], after)
	}
	return effect
}

// counted returns what the counter of a look has used, and what remains, with the limit after; nil if that is not
// known. Stores need not count refused hits above a limit, so they count fewer with a higher one.
func (e *LimitEditor) counted(ctx context.Context, look backend.Hit, after *rules.Rule) (used, remaining *uint64) {
	if after.Unlimited {
		return nil, nil
	}
	look.Limit = &after.Limit
	b := backend.Batch{Hits: []backend.Hit{look}, Verdicts: make([]backend.Verdict, 1)}
	if e.Counters.Backend.Take(ctx, &b) != nil || b.Verdicts[0].Err != nil {
		return nil, nil // The store does not answer.
	}
	before, capacity := b.Verdicts[0].Before, after.Limit.Capacity()
	left := capacity - min(capacity, before)
	return &before, &left
}

// warn adds warnings about a change of limits.
func (e *LimitEditor) warn(report *LimitReport, targets []target) {
	if report.Action != overrides.ActionSet {
		return
	}
	if slices.ContainsFunc(targets, func(t target) bool { return t.rule.ShadowMode }) {
		report.Warnings = append(report.Warnings, "the rule is in shadow mode: it counts, and refuses nothing")
	}
	if e.Note != "" {
		report.Warnings = append(report.Warnings, e.Note)
	}
}
