package ports

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

const (
	// IdleConnBytes is what is planned for a connection: an idle one takes 9 KiB on the gRPC port, and 19 KiB on the HTTP
	// port.
	IdleConnBytes = 20 << 10
	// IdleTLSBytes is the same with TLS: 34 KiB on the gRPC port, and 29 KiB on the HTTP port with client certificates.
	IdleTLSBytes = 36 << 10
)

const (
	operatorConns  = 256  // bounds the connections of each port for operators.
	minPortConns   = 8    // even if memory or open files suffice for fewer connections.
	WarnBelowConns = 1000 // a warning is logged if no port takes as many connections.

	PressureIdleTimeout = 10 * time.Second // replaces idleTimeout while an HTTP port is nearly full.
	unreadAnswerTimeout = 10 * time.Second // ends the connection of a client that does not read its answers.

	GRPCHandshakeWrites = 2 // HTTP/2 settings and an acknowledgement before the first answer.
	tlsHandshakeWrites  = 3 // counts the writes of the server in a TLS handshake.
)

// Process has the limits of this process that bound its connections.
type Process struct {
	OpenFiles   int   // 0 if the limit is not known.
	StoreFiles  int   // connections to stores
	MemoryBytes int64 // GOMEMLIMIT, or math.MaxInt64 without a limit.
}

// affordableConns returns how many connections fit into r, each with TLS if hasTLS, which limit is the reason, and what
// to raise for more. It reserves files for stores, rules and probes, and half of the memory.
func (r *Process) affordableConns(hasTLS bool) (room int, why, raise string) {
	room, raise = math.MaxInt32, "`ulimit -n`"
	if r.OpenFiles > 0 {
		reserved := r.reservedFiles()
		room = r.OpenFiles - reserved
		why = fmt.Sprintf("the process may open %d files (`ulimit -n`), of which %d are kept for stores, rules and probes",
			r.OpenFiles, reserved)
	}
	each, with := int64(IdleConnBytes), ""
	if hasTLS { // Callers choose which ports they fill.
		each, with = IdleTLSBytes, " with TLS"
	}
	if n := r.MemoryBytes / 2 / each; n < int64(room) {
		room, raise = int(n), "GOMEMLIMIT"
		why = fmt.Sprintf("GOMEMLIMIT is %d MiB, of which half is for connections, %d KiB for each%s", r.MemoryBytes>>20,
			each>>10, with)
	}
	return room, why, raise
}

// LowerConnCaps sets the most connections of operators' ports, and lowers those of the other ports, the largest first,
// until r has room for all. It returns which settings of ports that open at the start it lowered, and why; "" if it
// lowered none.
func (l List) LowerConnCaps(r Process) (lowered string) {
	usesTLS := func(p *Port) bool { return !p.IsForOperators && p.TLS.On }
	room, why, raise := r.affordableConns(slices.ContainsFunc(l, usesTLS))
	operators := min(operatorConns, max(minPortConns, room/32))
	var used []*Port
	for _, p := range l {
		switch {
		case p.IsForOperators:
			p.MaxConns = operators
			room -= operators
		case p.MaxConns > 0:
			used = append(used, p)
		}
	}
	slices.SortStableFunc(used, func(a, b *Port) int { return cmp.Compare(a.MaxConns, b.MaxConns) })
	share, isTooHigh := 0, false
	var named []string
	for i, p := range used {
		if !isTooHigh { // After the first port that asks for too much, the share stays the same.
			share = max(minPortConns, room/(len(used)-i))
		}
		if p.MaxConns > share {
			if p.OpensAtStart {
				named = append(named, fmt.Sprintf("%s=%d", p.capVariable(), p.MaxConns))
			}
			isTooHigh, p.MaxConns, p.capAdvice = true, share, "raise "+raise
		}
		room -= p.MaxConns
	}
	if len(named) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %s, so no port takes more than %d connections; raise that limit, or lower these settings",
		strings.Join(named, ", "), why, share)
}

// CapAdvice says how the port can have more connections.
func (p *Port) CapAdvice() string {
	advice := p.capAdvice
	switch {
	case advice != "":
	case p.IsForOperators:
		advice = "see what keeps connections open"
	default:
		advice = "raise " + p.capVariable()
	}
	return advice + ", or have clients share connections"
}

// capVariable returns the name of the setting of MaxConns.
func (p *Port) capVariable() string { return strings.ToUpper(p.Name) + "_MAX_CONNECTIONS" }

// reservedFiles returns how many files are kept from callers, for connections to stores
// and sinks, rule files, certificates, listeners and Go's own files.
func (r *Process) reservedFiles() int {
	return min(64+r.OpenFiles/16+r.StoreFiles, r.OpenFiles*3/4)
}
