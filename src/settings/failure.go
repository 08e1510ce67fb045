package settings

// Failure is what happens while the store does not answer.
type Failure struct {
	// Mode is what becomes of hits where the rules do not say: error, allow, deny
	// or local.
	Mode string
	// Replicas share the limits of local. 0: they count themselves.
	Replicas int
	// MaxInFlight bounds the calls that wait for a store.
	MaxInFlight int
	// BreakerFailures in a row open a server's breaker; 0: none do.
	BreakerFailures int
	// Header tells callers that the store did not answer; empty: none does.
	Header string
}

func (f *Failure) declare(r *reader) {
	r.section("When the store does not answer")
	r.oneOf(&f.Mode, "STORE_FAILURE_MODE", "error", "what happens without the store to limits that have no `on_store_failure`", "error", "allow", "deny", "local")
	r.integer(&f.Replicas, "REPLICAS", 0, "replicas that share the limits of `local`; 0: they count themselves, in the store, every 10 s").
		refuse(f.Replicas < 0, "how many there are, or 0 for them to count themselves")
	r.integer(&f.BreakerFailures, "STORE_BREAKER_FAILURES", 5, "attempts in a row without an answer after which the circuit breaker of a Redis or Memcached server opens. Calls for it are then refused at once, and it is only probed until it answers. It also opens for a server that fails more often than it answers. 0: never").atLeast(0)
	r.count(&f.MaxInFlight, "STORE_MAX_IN_FLIGHT", 20_000, "most calls that wait for Redis or Memcached at a time; more are refused at once")
	r.text(&f.Header, "LIMIT_DEGRADED_HEADER", "", "name of a response header that says `allow`, `deny` or `local` if that failure mode decided; empty: none")
}

func (f *Failure) validate(r *reader) {
	if f.Header != "" && !headerName.MatchString(f.Header) {
		r.problem("LIMIT_DEGRADED_HEADER", f.Header, "write the name of an HTTP header")
	}
}
