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
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"ratelimit/src/rules"
)

// Part is a rule file, or a resource of a management server. A part is accepted or refused as a whole.
type Part struct {
	Name string // a file's name; empty for resources, whose Data has it
	Type string // the resource's type URL; empty for files
	Data []byte
}

// Identity is a part's name and the domain whose rules it has.
type Identity struct {
	Name   string
	Domain string // empty if it cannot be read
	Place  string // see Owner; empty for files
}

// Result tells what a load changed and what is wrong with it.
type Result struct {
	// Set is nil when the load is refused, or none of its changes can take effect. When Err is set as well, Set has the bad
	// parts, and those that share their domains, as they were before.
	Set *rules.Set
	// Warnings are the problems of parts that take effect all the same.
	Warnings rules.Problems
	// Err is nil or [rules.Problems]: all problems of the load.
	Err error
	// Parts is the number of files or resources that were read.
	Parts int
	// Version is the management server's version, cut to 60 bytes; empty for files.
	Version string
	// Hash is 16 hex digits of a hash of the parts in Set, or of all parts that were read when Set is nil. Servers with the same
	// Hash and Options have the same rules.
	Hash string
	// At is when the parts were read.
	At time.Time
}

// Loader compiles loads. One goroutine at a time may call it.
type Loader struct {
	// AllOrNothing refuses all changes of a load that has a problem.
	AllOrNothing bool
	// FirstInPart allows a load with problems to take effect in part before any load was accepted.
	FirstInPart bool
	// Compile makes a Set of parts. Its error is [rules.Problems].
	Compile func([]Part) (*rules.Set, rules.Problems, error)
	// Identify returns the identity of each part. It is called for loads with problems only.
	Identify func([]Part) []Identity
	// Whole is the place of problems that the load as a whole has; empty for resources.
	Whole string

	inForce []packed // empty with AllOrNothing
}

// Load compiles parts and sets Set, Warnings, Err, Parts and Hash of out. problems are those found while the parts were read.
func (l *Loader) Load(parts []Part, problems rules.Problems, out *Result) {
	out.Parts, out.Hash = len(parts), hashOf(parts)
	set, warnings, err := l.Compile(parts)
	if len(problems) == 0 && err == nil {
		out.Set, out.Warnings = set, warnings
		l.keep(parts)
		return
	}
	if refused, ok := errors.AsType[rules.Problems](err); ok {
		problems = append(problems, refused...)
	}
	out.Err = problems
	kept, changed := l.inPart(parts, problems)
	if !changed {
		return
	}
	if set, warnings, err = l.Compile(kept); err != nil {
		return
	}
	out.Set, out.Warnings, out.Hash = set, warnings, hashOf(kept)
	l.keep(kept)
}

// inPart returns the parts that can be in force in spite of problems, and whether they differ from those in force now.
func (l *Loader) inPart(parts []Part, problems rules.Problems) (kept []Part, changed bool) {
	if l.AllOrNothing || len(parts) == 0 || len(l.inForce) == 0 && !l.FirstInPart {
		return nil, false
	}
	ids := l.Identify(parts)
	bad, found := l.badParts(ids, problems)
	if !found {
		return nil, false
	}
	before := make([]Part, 0, len(l.inForce))
	for _, p := range l.inForce {
		before = append(before, p.unpack())
	}
	kept = choose(parts, before, ids, l.Identify(before), bad)
	slices.SortStableFunc(kept, func(a, b Part) int { return cmp.Compare(a.Name, b.Name) })
	return kept, len(kept) > 0 && Sum(kept) != Sum(before)
}

// badParts returns the names of the parts that have problems. found is false if the load as a whole has one.
func (l *Loader) badParts(ids []Identity, problems rules.Problems) (bad map[string]bool, found bool) {
	bad = make(map[string]bool, len(problems))
	owner := Owner(ids)
	for _, p := range problems {
		name := owner(p.File)
		if name == "" || p.File == l.Whole {
			return nil, false
		}
		bad[name] = true
	}
	return bad, true
}

// Owner returns a function that names the part that has a problem at a place; "" if none has. If parts have a Place, it is that
// place, or what stands before one of its colons. Otherwise the place is the name, also of a part that could not be read.
func Owner(ids []Identity) func(place string) string {
	names := make(map[string]string) // by place
	for _, id := range ids {
		if id.Place != "" {
			names[id.Place] = id.Name
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

// Sum identifies parts, in whatever order they are.
func Sum(parts []Part) [sha256.Size]byte {
	sorted := slices.SortedFunc(slices.Values(parts), func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Type, b.Type), bytes.Compare(a.Data, b.Data))
	})
	sum := sha256.New()
	add := func(b []byte) { // with its length, so that "ab" and "c" differ from "a" and "bc"
		sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
		sum.Write(b)
	}
	for _, p := range sorted {
		add([]byte(p.Name + p.Type)) // one of them is empty
		add(p.Data)
	}
	return [sha256.Size]byte(sum.Sum(nil))
}

// hashOf returns [Result.Hash].
func hashOf(parts []Part) string {
	sum := Sum(parts)
	return hex.EncodeToString(sum[:8])
}

func (l *Loader) keep(parts []Part) {
	if !l.AllOrNothing {
		l.inForce = pack(parts)
	}
}

// packed is a Part with compressed Data: a large set of rules is kept for a long time.
type packed struct {
	Part
	size int // of Data before it was compressed
}

func pack(parts []Part) []packed {
	var buffer bytes.Buffer
	w, err := flate.NewWriter(&buffer, flate.BestSpeed)
	if err != nil {
		panic(err) // BestSpeed is a valid level
	}
	list := make([]packed, 0, len(parts))
	for _, p := range parts {
		buffer.Reset()
		w.Reset(&buffer)
		_, _ = w.Write(p.Data) // a bytes.Buffer returns no errors
		_ = w.Close()
		list = append(list, packed{Part{p.Name, p.Type, bytes.Clone(buffer.Bytes())}, len(p.Data)})
	}
	return list
}

func (p packed) unpack() Part {
	data := make([]byte, p.size)
	_, _ = io.ReadFull(flate.NewReader(bytes.NewReader(p.Data)), data) // pack wrote it
	return Part{p.Name, p.Type, data}
}
