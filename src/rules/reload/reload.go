// Package reload compiles what a source of rules sends, file by file or resource by resource, and remembers the parts in force.
// When some parts of a load have problems, the others take effect as far as they share no domain with a bad part:
//
//	parts -> compile -> no problem:  all parts are in force
//	                 -> problems:    bad parts, and those that share their domains, stay as they were;
//	                                 the others are compiled again and are in force
package reload

import (
	"bytes"
	"cmp"
	"compress/flate"
	"crypto/sha256"
	"encoding/binary"
	"encoding/gob"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"ratelimit/src/rules"
)

// Part is a rule file, or a resource of a management server. A part is accepted or refused as a whole.
type Part struct {
	Name string // Name is the file's name in messages, or the resource's type URL.
	Key  string // Key is the name by which delta xDS knows the resource; empty for other parts. Hashes do not depend on it.
	Data []byte
}

// PartIdentity tells which part a problem belongs to, and which rules the part has.
type PartIdentity struct {
	Name         string
	Domain       string // Domain is the domain whose rules the part has. It is empty if it cannot be read.
	ProblemPlace string // ProblemPlace is the place of the part's problems, such as `xds resource "edge"`. It is empty if that is Name.
}

// Result tells what a load changed and what is wrong with it.
type Result struct {
	// Set is nil when the load is refused, or none of its changes can take effect. When Err is set as well, Set has the bad
	// parts, and those that share their domains, as they were before.
	Set *rules.Set
	// Warnings are problems that do not keep parts from taking effect.
	Warnings rules.Problems
	// Err is nil or [rules.Problems]: all problems of the load.
	Err error
	// PartCount is the number of files or resources that were read.
	PartCount int
	// Version is the management server's version, cut to 60 bytes; empty for files.
	Version string
	// Hash is 16 hex digits of a hash of the parts in Set, or of all parts that were read when Set is nil. Servers with the same
	// Hash and Options have the same rules.
	Hash string
	// ReadTime is when the parts were read.
	ReadTime time.Time
}

// Config is the configuration that all sources of rules share.
type Config struct {
	// Options are what the rules are compiled with.
	Options rules.Options
	// AllOrNothing refuses all changes of a load that has a problem. Otherwise parts that share no domain with a bad part take
	// effect, and the others stay as they were.
	AllOrNothing bool
	// OnLoad is called after each load, accepted or refused. Required.
	OnLoad func(Result)
	// Turn, if not nil, is locked from before a load is compiled until OnLoad returns. Even the first load may take effect in part then.
	// [Source.Configure] sets it.
	Turn sync.Locker
}

// BeginLoad locks Turn. The caller calls unlock when OnLoad has returned.
func (c *Config) BeginLoad() (unlock func()) {
	if c.Turn == nil {
		return func() {}
	}
	c.Turn.Lock()
	return c.Turn.Unlock
}

// Loader compiles the parts of each load and remembers the parts in force. One goroutine at a time may call it.
type Loader struct {
	Config
	// AllowPartialFirstLoad allows a load with problems to take effect in part before any load was accepted.
	AllowPartialFirstLoad bool
	// CompileParts makes a Set of parts. Its error is [rules.Problems].
	CompileParts func([]Part, rules.Options) (*rules.Set, rules.Problems, error)
	// IdentifyParts returns the identity of each part. It is called for loads with problems only.
	IdentifyParts func([]Part) []PartIdentity
	// WholePlace is the place of problems that belong to no single part. Problems of resources need none.
	WholePlace string

	// SourceKeepsParts says that the source keeps the parts of the last load in memory anyway, so the Loader does not pack them.
	SourceKeepsParts bool

	// One of these has the parts in force, depending on SourceKeepsParts. Both are nil with AllOrNothing, and until a load with parts is
	// accepted.
	packedPartsInForce []byte
	keptPartsInForce   []Part
}

// PartsInForce returns the parts in force, or none with AllOrNothing.
func (l *Loader) PartsInForce() []Part {
	if l.SourceKeepsParts {
		return l.keptPartsInForce
	}
	return unpackParts(l.packedPartsInForce)
}

// Load compiles parts and sets Set, Warnings, Err, PartCount and Hash of out. problems are those found while the parts were read.
func (l *Loader) Load(parts []Part, problems rules.Problems, out *Result) {
	out.PartCount, out.Hash = len(parts), HashOfParts(parts)[:16]
	set, warnings, err := l.CompileParts(parts, l.Options)
	if problems = append(problems, rules.ProblemsOf(err)...); len(problems) > 0 {
		out.Err = problems
		if parts = l.acceptableParts(parts, problems); len(parts) == 0 {
			return
		}
		if set, warnings, err = l.CompileParts(parts, l.Options); err != nil {
			return
		}
	}
	out.Set, out.Warnings, out.Hash = set, warnings, HashOfParts(parts)[:16]
	switch {
	case l.AllOrNothing:
	case l.SourceKeepsParts:
		l.keptPartsInForce = slices.Clip(parts)
	default:
		l.packedPartsInForce = packParts(parts)
	}
}

// acceptableParts returns the parts that can be in force in spite of problems: the new parts, and the last good version of those that
// are held back. It returns nil if these are in force now.
func (l *Loader) acceptableParts(parts []Part, problems rules.Problems) (accepted []Part) {
	if l.AllOrNothing || len(parts) == 0 || l.packedPartsInForce == nil && l.keptPartsInForce == nil && !l.AllowPartialFirstLoad {
		return nil
	}
	ids := l.IdentifyParts(parts)
	owner, bad := PartOfPlace(ids), make(map[string]bool, len(problems))
	for _, p := range problems {
		name := owner(p.File)
		if name == "" || p.File == l.WholePlace {
			return nil
		}
		bad[name] = true
	}
	before := l.PartsInForce()
	beforeIDs := l.IdentifyParts(before)
	held := heldBackParts(ids, beforeIDs, bad)
	for i, p := range parts {
		if !held[ids[i].Name] {
			accepted = append(accepted, p)
		}
	}
	for i, p := range before {
		if held[beforeIDs[i].Name] {
			accepted = append(accepted, p)
		}
	}
	slices.SortStableFunc(accepted, func(a, b Part) int { return cmp.Compare(a.Name, b.Name) })
	if HashOfParts(accepted) == HashOfParts(before) {
		return nil
	}
	return accepted
}

// PartOfPlace returns a function from the place of a problem to the name of the part that has it, or "" if no part has it. A part has
// the problems at its ProblemPlace, and at places that continue it after a colon. Parts without ProblemPlace have the problems at their
// Name; it may be missing in ids because the file could not be read.
func PartOfPlace(ids []PartIdentity) func(place string) string {
	names := make(map[string]string) // names maps the ProblemPlace of each part to its Name.
	for _, id := range ids {
		if id.ProblemPlace != "" {
			names[id.ProblemPlace] = id.Name
		}
	}
	return func(place string) string {
		if len(names) == 0 {
			return place
		}
		for end := len(place); end >= 0; end = strings.LastIndex(place[:end], ": ") {
			if name, found := names[place[:end]]; found {
				return name
			}
		}
		return ""
	}
}

// HashOfParts returns a hash of parts in 64 hex digits, which does not depend on their order. The Hash of a Result is its start.
func HashOfParts(parts []Part) string {
	sorted := slices.SortedFunc(slices.Values(parts), func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), bytes.Compare(a.Data, b.Data))
	})
	sum := sha256.New()
	for _, p := range sorted {
		for _, b := range [][]byte{[]byte(p.Name), p.Data} { // The lengths make "ab" and "c" differ from "a" and "bc".
			sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
			sum.Write(b)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// packParts compresses parts, because a large set of rules is kept for a long time. It returns nil for no parts.
func packParts(parts []Part) []byte {
	if len(parts) == 0 {
		return nil
	}
	var packed bytes.Buffer // A bytes.Buffer returns no errors, so the writers below return none.
	w, _ := flate.NewWriter(&packed, flate.BestSpeed)
	_ = gob.NewEncoder(w).Encode(parts)
	_ = w.Close()
	return bytes.Clone(packed.Bytes())
}

// unpackParts returns the parts that packParts compressed, and none for nil.
func unpackParts(packed []byte) (parts []Part) {
	_ = gob.NewDecoder(flate.NewReader(bytes.NewReader(packed))).Decode(&parts) // Decode fails for nil only.
	return parts
}

// heldBackParts returns the names of the parts that have to stay as they were when the parts in bad have problems: the bad parts, and
// all parts that share a domain with one, directly or through other parts. The names are of now, of before, or of both.
//
//	before   a.yaml: web    b.yaml: api    c.yaml: jobs
//	now      a.yaml: web    b.yaml: web    c.yaml: jobs
//	bad      b.yaml: web is defined twice
//	held     a.yaml, b.yaml: both define web now
//
// A bad part of unknown domain that has no earlier version may be a renamed part, so all parts that are gone are held back too.
func heldBackParts(now, before []PartIdentity, bad map[string]bool) map[string]bool {
	held, heldDomains := maps.Clone(bad), make(map[string]bool)
	gone, hasDomain := make(map[string]bool), make(map[string]bool)
	for _, id := range before {
		gone[id.Name] = true
	}
	for _, id := range now {
		delete(gone, id.Name)
	}
	all := slices.Concat(now, before)
	for _, id := range all {
		hasDomain[id.Name] = hasDomain[id.Name] || id.Domain != ""
	}
	for name := range bad {
		if !hasDomain[name] {
			maps.Copy(held, gone)
		}
	}
	for changed := true; changed; {
		changed = false
		for _, id := range all {
			if id.Domain != "" && held[id.Name] != heldDomains[id.Domain] {
				held[id.Name], heldDomains[id.Domain], changed = true, true, true
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
