package settings

import (
	"time"
)

// DivvyPort is divvy's own.
const DivvyPort = 8321

// declare names the variables of divvy's port.
func (d *Divvy) declare(r *reader) {
	r.section("Divvy")
	r.text(&d.Host, "DIVVY_HOST", "0.0.0.0", "address of the port of divvy's line protocol")
	d.On, d.WhenNeeded = r.optionalPort(&d.Port, "DIVVY_PORT", DivvyPort, "that port; 0 picks a free one, `off`: none. Not set: 8321, as soon as a rule file of divvy is loaded (`*.ini`, or `*.json` with `default`), else none")
	r.text(&d.Domain, "DIVVY_DOMAIN", "divvy", "the domain that `HIT` asks. Not set: that of the ordered list if there is exactly one, else `divvy`")
	_, set := r.lookup("DIVVY_DOMAIN")
	d.OnlyList = !set
	r.text(&d.DomainKey, "DIVVY_DOMAIN_KEY", "", "key of a `HIT` whose value replaces the domain. Any caller can then choose a domain; empty: none")
	r.oneOf(&d.Keys, "DIVVY_KEYS", "own", "where first-hit windows of ordered lists and divvy's files are counted in Redis, on all ports. `own`: each rule has its own counter. `upstream`: in divvy's keys and form, so that both can count in one Redis; a canary then shares the counter of a rule like it", "own", "upstream")
	r.oneOf(&d.Round, "DIVVY_ROUND", "nearest", "how seconds in replies are rounded: `nearest` as in divvy, so a client may be told to come back in 0 s, or `up`", "nearest", "up")
	r.bytes(&d.MaxLine, "DIVVY_MAX_LINE_BYTES", 1<<20, "longest line; a longer one ends its connection").atMost(maxLine)
	r.count(&d.MaxConns, "DIVVY_MAX_CONNECTIONS", 10_000, "the most connections, as `HTTP_MAX_CONNECTIONS`")
	r.count(&d.MaxPipelined, "DIVVY_MAX_PIPELINED", 128, "most requests of a connection that are decided together, in one call of the store, up to 1000; the rest waits").atMost(maxPipelined)
	r.duration(&d.Idle, "DIVVY_IDLE_TIMEOUT", 10*time.Minute, "connections without a complete line for this time are closed; 0: never")
	d.TLS.declare(r, "DIVVY_", "this port")
}

// maxPipelined is what the limiter decides at a time.
const maxPipelined = 1000

// validate checks what one variable alone cannot.
func (d *Divvy) validate(r *reader) {
	if d.Domain == "" && d.DomainKey == "" {
		r.problem("DIVVY_DOMAIN", "", "write the domain that `HIT` asks, or set DIVVY_DOMAIN_KEY")
	}
}

// maxLine keeps one line from taking what all connections have for long ones.
const maxLine = 16 << 20
