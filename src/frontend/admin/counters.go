package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// CounterEntry is one key and value of a descriptor.
type CounterEntry struct {
	Key string `json:"key"`
	// Value is the whole value. It is not used if Prefix is set.
	Value string `json:"value,omitempty"`
	// Prefix, if not nil, is the start of the value, and the entry stands for all values that begin with it. Only the last entry of a
	// descriptor may have one.
	Prefix *string `json:"prefix,omitempty"`
}

// CounterChange says what to do with the counters of a descriptor.
type CounterChange struct {
	// Action is get, reset or set.
	Action     string         `json:"action"`
	Domain     string         `json:"domain"`
	Descriptor []CounterEntry `json:"descriptor"`
	// Used is how many units the counters hold after set. Other actions have none.
	Used *uint64 `json:"used,omitempty"`
	// DryRun changes nothing, and only reports.
	DryRun bool `json:"dry_run,omitempty"`
}

// The actions of a CounterChange.
const (
	ActionGet   = "get"
	ActionReset = "reset"
	ActionSet   = "set"
)

// IsPattern reports whether c stands for all counters that begin with its descriptor.
func (c *CounterChange) IsPattern() bool {
	n := len(c.Descriptor)
	return n > 0 && c.Descriptor[n-1].Prefix != nil
}

// Changes reports whether c changes counters.
func (c *CounterChange) Changes() bool { return c.Action != ActionGet && !c.DryRun }

// Counter is one counter of a descriptor, and the limit that it belongs to.
type Counter struct {
	// Rule is the full name of the rule.
	Rule string `json:"rule"`
	// Key is the counter's key. Stores may add to it, such as the start of a window.
	Key       string `json:"key"`
	Algorithm string `json:"algorithm"`
	// Limit is how many units pass at once, in PeriodSeconds if the algorithm is not gcra.
	Limit uint64 `json:"limit"`
	// PeriodSeconds is 0 if the limit has a calendar, and for a concurrency.
	PeriodSeconds float64 `json:"period_seconds,omitempty"`
	// CalendarWindow is the window of a limit with a calendar, in words. It is empty for other limits.
	CalendarWindow string `json:"calendar_window,omitempty"`
	// HoldSeconds is the time after which a hold expires. It is 0 for limits without holds.
	HoldSeconds float64 `json:"hold_seconds,omitempty"`
	// Used is the count, and Remaining what is left of the limit.
	Used      uint64 `json:"used"`
	Remaining uint64 `json:"remaining"`
	// ResetAfterSeconds is the time until the count is 0.
	ResetAfterSeconds float64 `json:"reset_after_seconds"`
	// Refuses says that the limit would refuse a request for one unit. RetryAfterSeconds is the time until it passes: 0 if it
	// passes now, -1 if it never does.
	Refuses           bool    `json:"refuses"`
	RetryAfterSeconds float64 `json:"retry_after_seconds"`
	// Shadow says that a refusal has no effect: the rule is in shadow mode, or its enforce_percent leaves out the counter.
	Shadow bool `json:"shadow,omitempty"`
	// Fallback is how the limit is decided because the store does not answer. It is empty if the store answers.
	Fallback string `json:"fallback,omitempty"`
}

// CounterReport is the result of a CounterChange.
type CounterReport struct {
	CounterChange
	// Counters are those of the descriptor, after the change. A pattern has none.
	Counters []Counter `json:"counters,omitempty"`
	// Before are the same counters before the change. It is empty if nothing was changed.
	Before []Counter `json:"before,omitempty"`
	// Matching is how many counters a pattern matches, and Names are the names of at most MaxNames of them, as the store has them.
	Matching int      `json:"matching,omitempty"`
	Names    []string `json:"names,omitempty"`
	// Warning says what the change has not done.
	Warning string `json:"warning,omitempty"`
}

// MaxNames is how many names of counters a report lists.
const MaxNames = 10

// Counters reads and changes counters.
type Counters interface {
	// Change performs c, which CounterChange.check has accepted. client goes into the log. progress is called now and
	// then with the number of counters that a pattern matches so far. An error that is a *CounterError is the client's.
	Change(ctx context.Context, c CounterChange, client Client, progress func(matching int)) (*CounterReport, error)
}

// Client is the sender of a request.
type Client struct {
	Addr string
	// User is the user name of basic authentication. Nothing checks it.
	User string
}

// CounterError is an error that the client can fix.
type CounterError struct {
	Status int // Status is the HTTP status code.
	Reason string
}

func (e *CounterError) Error() string { return e.Reason }

// Bounds on a change.
const (
	maxChangeBytes   = 64 << 10
	maxEntries       = 32
	maxTextBytes     = 4 << 10
	maxUserNameBytes = 64
	// MaxUsed is the most units that a counter can be set to.
	MaxUsed = 1 << 48
	// maxPatterns bounds the patterns that are searched for at a time. A search reads the names of all counters in the store.
	maxPatterns = 2
	// changeTimeout bounds the time of a change of one descriptor, patternTimeout that of a pattern.
	changeTimeout  = 5 * time.Second
	patternTimeout = 30 * time.Minute
	progressPause  = 500 * time.Millisecond
)

func badChange(format string, args ...any) error {
	return &CounterError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// check returns an error if c is not a valid change.
func (c *CounterChange) check() error {
	switch {
	case !slices.Contains([]string{ActionGet, ActionReset, ActionSet}, c.Action):
		return badChange("action %.100q is not known; write get, reset or set", c.Action)
	case c.Domain == "":
		return badChange("domain is missing")
	case len(c.Domain) > maxTextBytes:
		return badChange("domain has %d bytes; at most %d are allowed", len(c.Domain), maxTextBytes)
	case len(c.Descriptor) == 0:
		return badChange("descriptor is missing; write a list of entries, each with a key and a value")
	case len(c.Descriptor) > maxEntries:
		return badChange("descriptor has %d entries; at most %d are allowed", len(c.Descriptor), maxEntries)
	case c.Action == ActionSet && c.Used == nil:
		return badChange("set needs used, the number of units that the counters shall hold")
	case c.Action != ActionSet && c.Used != nil:
		return badChange("used belongs to the action set")
	case c.Used != nil && *c.Used > MaxUsed:
		return badChange("used is %d; at most %d units are allowed", *c.Used, uint64(MaxUsed))
	case c.Action == ActionSet && c.IsPattern():
		return badChange("a pattern can only be reset; name one descriptor to set its counters")
	}
	for i, e := range c.Descriptor {
		switch {
		case e.Prefix != nil && i < len(c.Descriptor)-1:
			return badChange("entry %d has a prefix; only the last entry may have one", i+1)
		case e.Prefix != nil && e.Value != "":
			return badChange("entry %d has both a value and a prefix", i+1)
		case len(e.Key)+len(e.Value) > maxTextBytes || e.Prefix != nil && len(*e.Prefix) > maxTextBytes:
			return badChange("entry %d has more than %d bytes", i+1, maxTextBytes)
		}
	}
	return nil
}

// PerformChange performs a change that names a whole descriptor, for a front end other than HTTP. Its errors are those of Counters.
func PerformChange(ctx context.Context, counters Counters, c *CounterChange, client Client) (*CounterReport, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	return counters.Change(ctx, *c, client, func(int) {})
}

// countersAPI answers /api/counters.
type countersAPI struct {
	counters Counters
	patterns chan struct{} // patterns has an element for each pattern that is searched for.
}

func newCountersAPI(c Counters) *countersAPI {
	return &countersAPI{c, make(chan struct{}, maxPatterns)}
}

// ServeHTTP reports the counters of the descriptor in the query of a GET, or performs the change in the body of a POST. With "Accept:
// application/x-ndjson" the answer to a pattern has a line for each progress before the report.
func (a *countersAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	var change CounterChange
	var err error
	if r.Method == http.MethodPost {
		change, err = readChange(w, r)
	} else {
		change, err = parseCounterQuery(r.URL.RawQuery)
	}
	if err == nil {
		err = change.check()
	}
	if err != nil {
		writeCounterError(w, err)
		return
	}
	timeout := changeTimeout
	if change.IsPattern() {
		timeout = patternTimeout
		select {
		case a.patterns <- struct{}{}:
			defer func() { <-a.patterns }()
		default:
			w.Header().Set("Retry-After", "5")
			writeCounterError(w, &CounterError{http.StatusTooManyRequests, fmt.Sprintf("%d patterns are being searched for; try again later", maxPatterns)})
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	client := Client{Addr: r.RemoteAddr}
	if user, _, ok := r.BasicAuth(); ok {
		client.User = user[:min(len(user), maxUserNameBytes)]
	}
	out := &reportWriter{w: w, lines: change.IsPattern() && strings.Contains(r.Header.Get("Accept"), "application/x-ndjson")}
	out.extendDeadline(timeout)
	report, err := a.counters.Change(ctx, change, client, out.progress)
	out.finish(report, err)
}

// reportWriter writes the answer to a change.
type reportWriter struct {
	w     http.ResponseWriter
	lines bool // lines says that the answer is JSON lines, the last of which is the report.
	last  time.Time
}

// extendDeadline gives the handler this time: the server's timeouts are for short answers.
func (o *reportWriter) extendDeadline(d time.Duration) {
	c := http.NewResponseController(o.w)
	_ = c.SetWriteDeadline(time.Now().Add(d + chunkWriteTimeout)) // It fails only in tests, for connections without deadlines.
	_ = c.SetReadDeadline(time.Now().Add(d + chunkWriteTimeout))
}

// progress writes a line if it is time for one.
func (o *reportWriter) progress(matching int) {
	if !o.lines || time.Since(o.last) < progressPause {
		return
	}
	o.last = time.Now()
	o.writeLine(map[string]int{"progress": matching})
}

func (o *reportWriter) writeLine(v any) {
	o.w.Header().Set("Content-Type", "application/x-ndjson")
	_ = json.NewEncoder(o.w).Encode(v) // Encode fails only if the client has gone.
	_ = http.NewResponseController(o.w).Flush()
}

// finish writes the report or the error.
func (o *reportWriter) finish(report *CounterReport, err error) {
	switch {
	case err != nil && !o.last.IsZero(): // The status is written already.
		o.writeLine(map[string]string{"error": err.Error()})
	case err != nil:
		writeCounterError(o.w, err)
	case o.lines:
		o.writeLine(report)
	default:
		writeJSON(o.w, http.StatusOK, report)
	}
}

func writeCounterError(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	if e, ok := errors.AsType[*CounterError](err); ok {
		status = e.Status
	}
	http.Error(w, err.Error(), status)
}

// readChange reads the body of a POST.
func readChange(w http.ResponseWriter, r *http.Request) (c CounterChange, err error) {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChangeBytes))
	d.DisallowUnknownFields()
	err = d.Decode(&c)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one object")
			if more != nil {
				err = more
			}
		}
	}
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return c, &CounterError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", maxChangeBytes)}
	}
	if err != nil {
		return c, badChange("the body is no change of counters: %v", err)
	}
	return c, nil
}

// parseCounterQuery returns the get that a query asks for: domain=D&entry=key=value&entry=key=value. A value that ends with * is the
// start of values.
func parseCounterQuery(query string) (c CounterChange, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return c, badChange("the query cannot be read: %v", err)
	}
	for name := range values {
		if name != "domain" && name != "entry" {
			return c, badChange("unknown parameter %.100q; write domain=D&entry=key=value&entry=key=value", name)
		}
	}
	if len(values["domain"]) > 1 {
		return c, badChange("give domain once")
	}
	c = CounterChange{Action: ActionGet, Domain: values.Get("domain")}
	for _, text := range values["entry"] {
		c.Descriptor = append(c.Descriptor, ParseCounterEntry(text))
	}
	return c, nil
}

// ParseCounterEntry returns the entry that a text such as user=alex or user=al* stands for.
func ParseCounterEntry(text string) CounterEntry {
	key, value, _ := strings.Cut(text, "=")
	if prefix, isPattern := strings.CutSuffix(value, "*"); isPattern {
		return CounterEntry{Key: key, Prefix: &prefix}
	}
	return CounterEntry{Key: key, Value: value}
}
