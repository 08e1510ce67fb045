package overrides

import (
	"encoding/binary"
	"iter"
	"time"
	"unique"
)

// packedSet is a set of overrides that takes little memory: what many of them have in common is kept once.
type packedSet map[packedID]packed

// packedID is an ID.
type packedID struct {
	place   unique.Handle[place]
	subject string
}

type place struct{ domain, rule string }

// packed is the rest of a Versioned. Versions are those of a FileStore, which start at 1 with each process.
type packed struct {
	said         unique.Handle[said]
	version      uint32
	until, since packedTime
}

// packedTime is a time in ms since the Unix epoch, big-endian; 0 for the zero time.
type packedTime [6]byte

func packTime(t time.Time) (p packedTime) {
	if t.IsZero() {
		return p
	}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(t.UnixMilli()))
	copy(p[:], b[2:])
	return p
}

func (p packedTime) time() time.Time {
	if p == (packedTime{}) {
		return time.Time{}
	}
	var b [8]byte
	copy(b[2:], p[:])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(b[:]))).UTC()
}

type said struct{ limit, reason, who string }

func packID(id ID) packedID { return packedID{unique.Make(place{id.Domain, id.Rule}), id.Subject} }

func (p packedSet) put(v Versioned) {
	p[packID(v.ID())] = packed{
		unique.Make(said{v.Limit, v.Reason, v.Who}), uint32(v.Version), packTime(v.Until), packTime(v.Since),
	}
}

func (p packedSet) get(id ID) (v Versioned, ok bool) {
	key := packID(id)
	e, ok := p[key]
	if !ok {
		return v, false
	}
	return unpack(key, e), true
}

func (p packedSet) remove(id ID) { delete(p, packID(id)) }

func (p packedSet) all() iter.Seq[Versioned] {
	return func(yield func(Versioned) bool) {
		for key, e := range p {
			if !yield(unpack(key, e)) {
				return
			}
		}
	}
}

func unpack(key packedID, e packed) Versioned {
	at, text := key.place.Value(), e.said.Value()
	return Versioned{Override{
		Domain: at.domain, Rule: at.rule, Subject: key.subject, Limit: text.limit, Until: e.until.time(),
		Reason: text.reason, Who: text.who, Since: e.since.time(),
	}, uint64(e.version)}
}
