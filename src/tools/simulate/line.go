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

// problem is why a line is invalid, and how to fix it.
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
	if text = bytes.TrimSpace(text); text[0] != '{' {
		return nil, nil, wrong(form, "the line is not a JSON object")
	}
	next := func() (part []byte) {
		end := partEnd(text)
		part, text = bytes.TrimSpace(text[:end]), text[end+1:]
		return part
	}
	for text = text[1:]; len(bytes.TrimSpace(text)) > len("}"); {
		name, value := next(), next()
		var key string
		_ = json.Unmarshal(name, &key) // it is a string in valid JSON
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

// partEnd returns the place of the comma, colon or brace after a name or a value. text is
// the rest of a valid JSON object.
func partEnd(text []byte) int {
	depth, quoted := 0, false
	for i := 0; ; i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case depth == 0 && (c == ',' || c == ':' || c == '}'):
			return i
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
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
