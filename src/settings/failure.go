package settings

import (
	"strconv"
	"strings"
)

// Failure is what happens while the store does not answer.
type Failure struct {
	// Mode is what becomes of hits where the rules do not say: error, allow, deny
	// or local.
	Mode string
	// Replicas share the limits of local. 0: they count themselves.
	Replicas int
	// Header tells callers that the store did not answer; empty: none does.
	Header string
}

func (f *Failure) declare(r *reader) {
	r.section("When the store does not answer")
	r.oneOf(&f.Mode, "STORE_FAILURE_MODE", "error", "what becomes of requests where the rules have no `on_store_failure`: `error`, `allow`, `deny` or `local`", "error", "allow", "deny", "local")
	f.Mode = strings.ToLower(f.Mode)
	r.integer(&f.Replicas, "REPLICAS", 0, "how many replicas share the limits of `local`; 0: they count themselves, in the store, every 10 s")
	r.text(&f.Header, "LIMIT_DEGRADED_HEADER", "", "name of a response header that says `allow`, `deny` or `local` when that decided; empty: none")
}

func (f *Failure) validate(r *reader) {
	if f.Replicas < 0 {
		r.problem("REPLICAS", strconv.Itoa(f.Replicas), "write how many there are, or 0 for them to count themselves")
	}
	if f.Header != "" && !headerName.MatchString(f.Header) {
		r.problem("LIMIT_DEGRADED_HEADER", f.Header, "write the name of an HTTP header")
	}
}
