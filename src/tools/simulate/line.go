package simulate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
)

// line is a line of the input.
type line struct {
	number  int
	at      time.Time // UTC
	request *limiter.Request
	bad     error // of the class limiter.ErrRequest, if the service would refuse it
}

// problem says what is wrong with a line, and how to fix it.
type problem struct{ what, fix string }

func wrong(fix, format string, args ...any) *problem {
	return &problem{fmt.Sprintf(format, args...), fix}
}

// parser reads lines. It remembers parsed requests by their text, since a recording
// repeats them.
type parser struct {
	start      time.Time
	allowSteps bool
	last       time.Time // of the line before; zero: this is the first

	known      map[string]*limiter.Request
	knownBytes int // about what known takes
}

// A parser remembers texts up to maxKnownText bytes, and up to maxKnownBytes together. It
// then forgets all of them.
const (
	maxKnownText  = 4 << 10
	maxKnownBytes = 32 << 20
)

// parse reads a line that is not blank.
func (p *parser) parse(text []byte) (l line, _ *problem) {
	at, request, problem := split(text)
	if problem != nil {
		return l, problem
	}
	if l.at, problem = p.instant(at); problem != nil {
		return l, problem
	}
	if problem = p.parseRequest(request, &l); problem != nil {
		return l, problem
	}
	p.last = l.at
	return l, nil
}

// parseRequest reads the value of "request" into l.
func (p *parser) parseRequest(text []byte, l *line) *problem {
	if l.request = p.known[string(text)]; l.request != nil {
		return nil
	}
	req, err := rls.ParseJSON(text)
	switch {
	case errors.Is(err, limiter.ErrRequest):
		l.bad = err
		return nil
	case err != nil:
		return wrong("write a RateLimitRequest as proto3 JSON", "the request is none: %v", err)
	}
	l.request = req
	p.remember(text, req)
	return nil
}

func (p *parser) remember(text []byte, req *limiter.Request) {
	if len(text) > maxKnownText {
		return
	}
	size := 200 + 2*len(text)
	for i := range req.Descriptors {
		size += 100 + 50*len(req.Descriptors[i].Entries)
	}
	if p.knownBytes += size; p.known == nil || p.knownBytes > maxKnownBytes {
		p.known, p.knownBytes = make(map[string]*limiter.Request), size
	}
	p.known[string(text)] = req
}

// instant reads the value of "at".
func (p *parser) instant(text []byte) (time.Time, *problem) {
	const form = `write a duration such as "1.5s", or an instant such as "2026-01-01T00:00:01.5Z"`
	var s string
	if err := json.Unmarshal(text, &s); err != nil || text[0] != '"' { // null is no error to Unmarshal
		return time.Time{}, wrong(form, `"at" is not text but %s`, brief(text))
	}
	var at time.Time
	if strings.ContainsAny(s, "T:") { // which no duration has
		var err error
		if at, err = ParseInstant(s); err != nil {
			return at, wrong(form, `"at" is %s, %v`, brief(text), err)
		}
	} else {
		d, err := time.ParseDuration(s)
		if err != nil {
			return at, wrong(form, `"at" is neither a duration nor an instant: %s`, brief(text))
		}
		if at = p.start.Add(d); !algorithm.ValidNow(at) {
			return at, wrong("choose another --start, or another time", "%v after the start is outside the years 1970 to 2149", d)
		}
		if d < 0 && !p.allowSteps {
			return at, wrong("choose an earlier --start, or give --allow-clock-steps", `"at" is %v, before the start`, d)
		}
	}
	if at.Before(p.last) && !p.allowSteps {
		return at, wrong("sort the lines, or give --allow-clock-steps", "the clock steps back, from %s to %s", shown(p.last), shown(at))
	}
	return at, nil
}

// ParseInstant reads an instant of RFC 3339 with up to nanoseconds, in the years
// 1970 to 2149.
func ParseInstant(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || text[len("2006-01-02T15")] != ':' || strings.Contains(text, ",") { // which Parse lets pass
		return at, errors.New("no instant as RFC 3339 has it")
	}
	if _, fraction, ok := strings.Cut(text, "."); ok && len(fraction)-len(strings.TrimLeft(fraction, "0123456789")) > 9 {
		return at, errors.New("an instant finer than nanoseconds")
	}
	at = at.UTC()
	if !algorithm.ValidNow(at) {
		return at, errors.New("an instant outside the years 1970 to 2149")
	}
	return at, nil
}

func shown(at time.Time) string { return at.Format(time.RFC3339Nano) }

// split returns the values of "at" and "request" as JSON.
func split(text []byte) (at, request []byte, _ *problem) {
	const form = `write {"at": ..., "request": ...}`
	if !json.Valid(text) {
		return nil, nil, wrong(form, "the line is not JSON: %s", syntax(text))
	}
	w := walker{text, 0}
	w.blanks()
	if w.text[w.at] != '{' {
		return nil, nil, wrong(form, "the line is not a JSON object")
	}
	w.skip()
	for w.text[w.at] != '}' {
		name := w.value()
		var key string
		_ = json.Unmarshal(name, &key) // it is a string in valid JSON
		w.skip()                       // the colon
		value := w.value()
		if w.text[w.at] == ',' {
			w.skip()
		}
		to := &at
		switch key {
		case "at":
		case "request":
			to = &request
		default:
			return nil, nil, wrong("remove it", "unknown key %s", brief(name))
		}
		if *to != nil {
			return nil, nil, wrong("remove one", "%q is there twice", key)
		}
		*to = value
	}
	switch {
	case at == nil:
		return nil, nil, wrong(`add "at": "1.5s", a time after the start, or an instant`, `there is no "at"`)
	case request == nil:
		return nil, nil, wrong(`add "request": {...}, a RateLimitRequest as proto3 JSON`, `there is no "request"`)
	}
	return at, request, nil
}

// syntax returns why text is not JSON.
func syntax(text []byte) string {
	var any json.RawMessage
	err := json.Unmarshal(text, &any)
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("column %d: %v", e.Offset, e)
	}
	return fmt.Sprint(err)
}

// walker goes through valid JSON. After each step it is at a byte that is not blank, or at
// the end.
type walker struct {
	text []byte
	at   int
}

func (w *walker) blanks() {
	for w.at < len(w.text) && strings.IndexByte(" \t\r\n", w.text[w.at]) >= 0 {
		w.at++
	}
}

// skip skips one byte.
func (w *walker) skip() {
	w.at++
	w.blanks()
}

// value returns the value at this place and skips it.
func (w *walker) value() []byte {
	from, depth := w.at, 0
	for ; w.at < len(w.text); w.at++ {
		switch w.text[w.at] {
		case '"':
			w.quoted()
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		default:
			if depth > 0 || !w.scalarEnds() {
				continue
			}
		}
		if depth == 0 {
			w.at++
			break
		}
	}
	value := w.text[from:w.at]
	w.blanks()
	return value
}

// scalarEnds reports whether this byte is the last of a number or a word.
func (w *walker) scalarEnds() bool {
	return w.at+1 == len(w.text) || strings.IndexByte(",]} \t\r\n", w.text[w.at+1]) >= 0
}

// quoted goes to the end of a string.
func (w *walker) quoted() {
	for w.at++; w.text[w.at] != '"'; w.at++ {
		if w.text[w.at] == '\\' {
			w.at++
		}
	}
}

// brief returns text for a message, cut if it is long.
func brief(text []byte) string {
	const most = 60
	if len(text) > most {
		return fmt.Sprintf("%s... (%d bytes)", bytes.ToValidUTF8(text[:most], nil), len(text))
	}
	return string(text)
}
