// Package reload compiles what a source of rules sends, file by file or resource by resource. Each domain is compiled
// alone, and again only when one of its parts has changed. When some parts of a load have problems, the others take
// effect as far as they share no domain with a bad part:
//
//	parts -> read and compile the domains that changed -> no problem:  all parts are in force
//	                                                   -> problems:    bad parts, and those that share their domains,
//	                                                                   stay as they were; the others are in force
package reload

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// Part is a rule file, or a resource of a management server. A part is accepted or refused as a whole.
type Part struct {
	Name string // the file's name in messages, or the resource's type URL
	Key  string // the name by which delta xDS knows the resource; empty for other parts. Hashes do not depend on it
	Data []byte
	// Attached is what the Format reads beside Data, such as the files that a rule file names. It is accepted and refused
	// together with the part. Nil for nothing.
	Attached any
	Digest   Digest // that of Data and Attached. Zero stands for that of Data alone

	// Format.Identify sets these. If they are empty, they are Name.
	ID      string // parts of different loads with one ID are versions of one part
	Place   string // the place of the part's problems, such as `xds resource "edge"`
	SortKey string // the order of parts of different loads that are in force together

	domain string // the domain whose rules the part has; empty if it has none, or cannot be read
}

// Digest is a hash of the contents of a part.
type Digest [sha256.Size]byte

// DigestOf returns the Digest of contents.
func DigestOf(data []byte) Digest { return sha256.Sum256(data) }

func (p *Part) setDigest() {
	if p.Digest == (Digest{}) {
		p.Digest = DigestOf(p.Data)
	}
}

// Result tells what a load changed and what is wrong with it.
type Result struct {
	// Set are the rules in force, of all sources. It is nil when the load is refused, or none of its changes can take
	// effect. When Err is set as well, Set has the bad parts, and those that share their domains, as they were before.
	Set *rules.Set
	// OwnSet has the rules of Set that are of this source; nil if Set is nil.
	OwnSet *rules.Set
	// Warnings are problems that do not keep parts from taking effect.
	Warnings rules.Problems
	// Err is nil or [rules.Problems]: all problems of the load.
	Err error
	// PartCount is the number of files or resources that were read.
	PartCount int
	// Version is the management server's version, cut to 60 bytes; empty for files.
	Version string
	// Hash is 16 hex digits of a hash of the contents of the parts in Set, or of all parts that were read when Set is nil.
	// Servers with the same Hash and Options have the same rules, whatever the files are called.
	Hash string
	// ReadTime is when the parts were read.
	ReadTime time.Time
}

// Config is the configuration that all sources of rules share.
type Config struct {
	// Options are what the rules are compiled with.
	Options compile.Options
	// AllOrNothing refuses all changes of a load that has a problem. Otherwise parts that share no domain with a bad part
	// take effect, and the others stay as they were.
	AllOrNothing bool
	// OnLoad is called after each load, accepted or refused. Required.
	OnLoad func(Result)
	// Source is the source among several, whose domains are problems. Nil if there is only one.
	Source *Source
}

// BeginLoad waits for the loads of other sources. The caller calls end when OnLoad has returned.
func (c *Config) BeginLoad() (end func()) {
	if c.Source == nil {
		return func() {}
	}
	c.Source.sources.mu.Lock()
	return c.Source.sources.mu.Unlock
}

// Loader compiles the parts of each load and remembers the rules in force. One goroutine at a time may call it.
type Loader struct {
	Config
	Format Format
	// AllowPartialFirstLoad allows a load with problems to take effect in part before any load was accepted.
	AllowPartialFirstLoad bool
	// WholePlace is the place of problems that belong to no single part. Problems of resources need none.
	WholePlace string

	inForce *load // the rules in force; nil before the first accepted load
	last    *load // the last load. It has what was compiled and is not in force
	joiner  rules.Joiner
}

// HasRules reports whether rules are in force.
func (l *Loader) HasRules() bool { return l.inForce != nil }

// HasPartAt reports whether the file at path is in force, or one below it if path is a directory.
func (l *Loader) HasPartAt(path string) bool {
	return l.inForce != nil && slices.ContainsFunc(l.inForce.parts, func(p Part) bool {
		rest, found := strings.CutPrefix(p.Name, path)
		return found && (rest == "" || os.IsPathSeparator(rest[0]))
	})
}

// PartsInForce returns the parts in force, without their Data.
func (l *Loader) PartsInForce() []Part {
	if l.inForce == nil {
		return nil
	}
	return l.inForce.parts
}

// Compile compiles parts into one Set. Its error is [rules.Problems].
func Compile(format Format, parts []Part, opt compile.Options) (*rules.Set, rules.Problems, error) {
	compiled, problems := compileParts(format, parts, opt)
	if len(problems) > 0 {
		return nil, nil, format.ArrangeProblems(problems)
	}
	var joiner rules.Joiner
	return joiner.Join(compiled.sets()), compiled.warnings(format), nil
}

// Load compiles parts and sets Set, Warnings, Err, PartCount and Hash of out. problems are those found while the parts
// were read.
func (l *Loader) Load(parts []Part, problems rules.Problems, out *Result) {
	now, found := compileParts(l.Format, parts, l.Options, l.inForce, l.last)
	l.last = now
	out.PartCount, out.Hash = len(parts), now.hash()
	bad := now.badParts()
	for _, p := range problems {
		bad[p.File] = true
	}
	found = slices.Concat(l.domainConflicts(now, bad), found) // Of two problems at one place the first one counts.
	if problems = append(problems, l.Format.ArrangeProblems(found)...); len(problems) > 0 {
		out.Err = problems
		if now = l.acceptable(now, bad); now == nil {
			return
		}
	}
	l.inForce = now
	out.OwnSet, out.Warnings, out.Hash = rules.Union(now.sets()), now.warnings(l.Format), now.hash()
	if l.Source != nil {
		out.Set = l.Source.join(out.OwnSet)
	} else {
		out.Set = l.joiner.Join([]*rules.Set{out.OwnSet})
	}
}

// sets returns the Sets of all units, of which none has problems.
func (l *load) sets() []*rules.Set {
	sets := make([]*rules.Set, len(l.units))
	for i, u := range l.units {
		sets[i] = u.set
	}
	return sets
}

func (l *load) warnings(format Format) (warnings rules.Problems) {
	for _, u := range l.units {
		warnings = append(warnings, u.warnings...)
	}
	warnings = append(warnings, compile.WarnSameNames(l.sets())...)
	format.SortWarnings(warnings)
	return warnings
}

// hash returns a hash of the contents of all parts, whatever their names are.
func (l *load) hash() string {
	parts := slices.Clone(l.parts)
	for i := range parts {
		parts[i].Name = ""
	}
	return HashOfParts(parts)[:16]
}

// badParts returns the IDs of the parts whose units have problems.
func (l *load) badParts() map[string]bool {
	bad := make(map[string]bool)
	for _, u := range l.units {
		if u.set == nil {
			u.addIDs(bad)
		}
	}
	return bad
}

func (u *unit) addIDs(ids map[string]bool) {
	for i := range u.parts {
		ids[u.parts[i].ID] = true
	}
}

// domainConflicts returns the problems of the domains that other sources have, and adds the IDs of their parts to bad.
func (l *Loader) domainConflicts(now *load, bad map[string]bool) (problems rules.Problems) {
	if l.Source == nil {
		return nil
	}
	for _, u := range now.units {
		if u.domain == "" {
			continue
		}
		owner := l.Source.ownerOf(u.domain)
		if owner == "" {
			continue
		}
		u.addIDs(bad)
		for _, at := range u.domainPos {
			problems.Add(at, "remove it from one of them",
				"domain %s is in two sources of rules: %s has it already, so it is not taken from %s",
				rules.Quote(u.domain), owner, l.Source.Name)
		}
	}
	return problems
}

// acceptable returns the rules that can be in force although the parts in bad have problems: the new parts, and the
// last good version of those that are held back. It returns nil if these are in force now.
func (l *Loader) acceptable(now *load, bad map[string]bool) *load {
	before := l.inForce
	if before == nil {
		before = new(load)
	}
	// A load that is too large has no units.
	if l.AllOrNothing || len(now.units) == 0 || len(before.parts) == 0 && !l.AllowPartialFirstLoad || bad[l.WholePlace] {
		return nil
	}
	held := heldBackParts(now.parts, before.parts, bad)
	accepted := new(load)
	accepted.add(now, func(id string) bool { return !held[id] })
	accepted.add(before, func(id string) bool { return held[id] })
	if len(accepted.parts) == 0 || HashOfParts(accepted.parts) == HashOfParts(before.parts) ||
		!accepted.fits(l.Format.MaxPlaceBytes) {
		return nil
	}
	return accepted
}

// add adds the parts of other whose IDs fit, with their units. All parts of a unit fit, or none.
func (l *load) add(other *load, fit func(id string) bool) {
	for i := range other.parts {
		if fit(other.parts[i].ID) {
			l.parts = append(l.parts, other.parts[i])
		}
	}
	for _, u := range other.units {
		if fit(u.parts[0].ID) {
			l.units = append(l.units, u)
		}
	}
	slices.SortStableFunc(l.parts, func(a, b Part) int { return cmp.Compare(a.SortKey, b.SortKey) })
	slices.SortStableFunc(l.units, func(a, b *unit) int { return cmp.Compare(a.parts[0].SortKey, b.parts[0].SortKey) })
}

// fits reports whether the names and the places of all units together are not too long.
func (l *load) fits(maxPlaceBytes int) bool {
	var shared compile.Shared
	placeBytes := 0
	for _, u := range l.units {
		if placeBytes += u.placeBytes; u.set == nil || !shared.Reuse(u.set) ||
			maxPlaceBytes > 0 && placeBytes > maxPlaceBytes {
			return false
		}
	}
	return true
}

// HashOfParts returns a hash of parts in 64 hex digits, which does not depend on their order.
func HashOfParts(parts []Part) string {
	sorted := slices.Clone(parts)
	for i := range sorted {
		sorted[i].setDigest()
	}
	slices.SortFunc(sorted, func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), bytes.Compare(a.Digest[:], b.Digest[:]))
	})
	sum := sha256.New()
	for _, p := range sorted {
		// The length makes "ab" and "c" differ from "a" and "bc".
		sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(p.Name))))
		sum.Write([]byte(p.Name))
		sum.Write(p.Digest[:])
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// heldBackParts returns the IDs of the parts that have to stay as they were when the parts in bad have problems: the
// bad parts, and all parts that share a domain with one, directly or through other parts. The IDs are of now, of
// before, or of both.
//
//	before   a.yaml: web    b.yaml: api    c.yaml: jobs
//	now      a.yaml: web    b.yaml: web    c.yaml: jobs
//	bad      b.yaml: web is defined twice
//	held     a.yaml, b.yaml: both define web now
//
// A bad part of unknown domain that has no earlier version may be a renamed part, so all parts that are gone are held
// back too.
func heldBackParts(now, before []Part, bad map[string]bool) map[string]bool {
	held, heldDomains := maps.Clone(bad), make(map[string]bool)
	gone, hasDomain := make(map[string]bool), make(map[string]bool)
	for i := range before {
		gone[before[i].ID] = true
	}
	for i := range now {
		delete(gone, now[i].ID)
	}
	all := slices.Concat(now, before)
	for i := range all {
		hasDomain[all[i].ID] = hasDomain[all[i].ID] || all[i].domain != ""
	}
	for id := range bad {
		if !hasDomain[id] {
			maps.Copy(held, gone)
		}
	}
	for changed := true; changed; {
		changed = false
		for i := range all {
			if p := &all[i]; p.domain != "" && held[p.ID] != heldDomains[p.domain] {
				held[p.ID], heldDomains[p.domain], changed = true, true, true
			}
		}
	}
	return held
}

// Signal holds one message until it is received. Messages that are sent in between are dropped.
type Signal chan struct{}

// NewSignal returns a Signal without a message.
func NewSignal() Signal { return make(Signal, 1) }

// Send sends a message. It never blocks.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Clear drops the message, and returns whether there was one.
func (s Signal) Clear() bool {
	select {
	case <-s:
		return true
	default:
		return false
	}
}
