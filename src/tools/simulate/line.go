package simulate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
)

// Line is a valid line of the input: a request, or how many requests the recording lacks.
type Line struct {
	Number int       // from 1; blank lines count.
	At     time.Time // in UTC.
	// Request is shared by lines with the same text; Now is not set. It is nil if Refusal or Lost is set.
	Request *limiter.Request
	// Refusal is the error of class limiter.ErrInvalidRequest with which the service would refuse the request.
	Refusal error
	Answer  string // the recorded answer, one of the constants Answer…; empty if the line has none.
	Lost    uint64 // how many requests the recording lacks here; 0 for a line with a request.

	mustFlush bool // The next line has not arrived: the sender may wait for the output of this one.
}

// These are the answers that a recording can have.
const (
	AnswerOK        = "OK"
	AnswerOverLimit = "OVER_LIMIT"
	AnswerError     = "ERROR" // The service answered with an error.
)

// InputError is an invalid line of the input. The lines before it have been decided and written.
type InputError struct {
	Name        string // of the input
	Line        int    // from 1; blank lines count
	Reason, Fix string
}

func (e *InputError) Error() string {
	return fmt.Sprintf("%s:%d: %s; %s", e.Name, e.Line, e.Reason, e.Fix)
}

// invalidLine returns an InputError without its Name and Line, which the reader of the input adds.
func invalidLine(fix, reason string, args ...any) *InputError {
	return &InputError{Reason: fmt.Sprintf(reason, args...), Fix: fix}
}

// parser parses lines. It keeps parsed requests by their text, because recordings repeat requests.
type parser struct {
	start           time.Time // the instant from which durations in the input count.
	allowClockSteps bool
	previous        time.Time // the time of the line before; zero before the first line.

	cache      map[string]*limiter.Request
	cacheBytes int // an estimate of the memory of cache.
}

// The cache takes texts up to maxCachedText bytes. It is emptied when it exceeds maxCacheBytes.
const (
	maxCachedText = 4 << 10
	maxCacheBytes = 32 << 20
)

// parse parses a line that is not blank.
func (p *parser) parse(text []byte) (l Line, _ *InputError) {
	parts, err := splitLine(text)
	if err != nil {
		return l, err
	}
	if l.At, err = p.parseTime(parts.at); err != nil {
		return l, err
	}
	if l.Answer, err = parseAnswer(parts.answer); err != nil {
		return l, err
	}
	p.previous = l.At
	if parts.lost != nil {
		l.Lost, err = parseLost(parts)
		return l, err
	}
	l.Request, l.Refusal = p.parseRequest(parts.request)
	if l.Refusal != nil && !errors.Is(l.Refusal, limiter.ErrInvalidRequest) {
		return l, invalidLine("write a RateLimitRequest as proto3 JSON", "the request is none: %v", l.Refusal)
	}
	return l, nil
}

// parseRequest parses the value of "request". The errors are those of rls.ParseJSON.
func (p *parser) parseRequest(text []byte) (*limiter.Request, error) {
	if req := p.cache[string(text)]; req != nil {
		return req, nil
	}
	req, err := rls.ParseJSON(text)
	if err != nil {
		return nil, err
	}
	if len(text) <= maxCachedText {
		size := 200 + 2*len(text)
		for i := range req.Descriptors {
			size += 100 + 50*len(req.Descriptors[i].Entries)
		}
		if p.cacheBytes += size; p.cache == nil || p.cacheBytes > maxCacheBytes {
			p.cache, p.cacheBytes = make(map[string]*limiter.Request), size
		}
		p.cache[string(text)] = req
	}
	return req, nil
}

func (p *parser) parseTime(value []byte) (at time.Time, _ *InputError) {
	const form = `write a duration such as "1.5s", or an instant such as "2026-01-01T00:00:01.5Z"`
	var text string
	if err := json.Unmarshal(value, &text); err != nil || value[0] != '"' { // Unmarshal accepts null as an empty string.
		return at, invalidLine(form, `"at" is not text but %s`, brief(value))
	}
	d, err := time.ParseDuration(text)
	switch {
	case strings.ContainsAny(text, "T:"): // A duration has neither T nor a colon.
		if at, err = ParseInstant(text); err != nil {
			return at, invalidLine(form, `"at" is %s, %v`, brief(value), err)
		}
	case err != nil:
		return at, invalidLine(form, `"at" is neither a duration nor an instant: %s`, brief(value))
	default:
		if at = p.start.Add(d); !algorithm.IsValidInstant(at) {
			return at, invalidLine("choose another --start, or another time",
				"%v after the start is outside the years 1970 to 2149", d)
		}
		if d < 0 && !p.allowClockSteps {
			return at, invalidLine("choose an earlier --start, or give --allow-clock-steps", `"at" is %v, before the start`, d)
		}
	}
	if at.Before(p.previous) && !p.allowClockSteps {
		return at, invalidLine("sort the lines, or give --allow-clock-steps",
			"the clock steps back, from %s to %s", instantText(p.previous), instantText(at))
	}
	return at, nil
}

// parseAnswer parses the value of "answer", which may be missing.
func parseAnswer(value []byte) (answer string, _ *InputError) {
	for _, answer := range []string{AnswerOK, AnswerOverLimit, AnswerError} {
		if string(value) == `"`+answer+`"` {
			return answer, nil
		}
	}
	if value == nil {
		return "", nil
	}
	return "", invalidLine(`write "OK", "OVER_LIMIT" or "ERROR", or leave it out`, `"answer" is %s`, brief(value))
}

// parseLost parses the value of "lost", which stands in place of a request.
func parseLost(parts lineParts) (n uint64, _ *InputError) {
	if parts.request != nil || parts.answer != nil {
		return 0, invalidLine("remove it", `"lost" is beside a request or an answer`)
	}
	n, err := strconv.ParseUint(string(parts.lost), 10, 64)
	if err != nil || n == 0 {
		return 0, invalidLine("write the number of requests that were not recorded, 1 or more", `"lost" is %s`,
			brief(parts.lost))
	}
	return n, nil
}

// ParseInstant parses an RFC 3339 instant in the years 1970 to 2149, with a fraction of up to nanoseconds.
func ParseInstant(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	// time.Parse accepts a one-digit hour and a decimal comma.
	if err != nil || text[len("2006-01-02T15")] != ':' || strings.Contains(text, ",") {
		return at, errors.New("no instant as RFC 3339 has it")
	}
	if _, fraction, ok := strings.Cut(text, "."); ok && len(fraction)-len(strings.TrimLeft(fraction, "0123456789")) > 9 {
		return at, errors.New("an instant finer than nanoseconds")
	}
	at = at.UTC()
	if !algorithm.IsValidInstant(at) {
		return at, errors.New("an instant outside the years 1970 to 2149")
	}
	return at, nil
}

func instantText(at time.Time) string { return at.Format(time.RFC3339Nano) }

// lineParts has the values of a line as JSON; nil for a missing one.
type lineParts struct{ at, request, answer, lost []byte }

// splitLine returns the values in a JSON object, in half of the time that a json.Decoder takes.
func splitLine(text []byte) (parts lineParts, _ *InputError) {
	const form = `write {"at": ..., "request": ...}`
	if !json.Valid(text) {
		return parts, invalidLine(form, "the line is not JSON: %s", syntaxProblem(text))
	}
	if text = bytes.TrimSpace(text); text[0] != '{' {
		return parts, invalidLine(form, "the line is not a JSON object")
	}
	next := func() (part []byte) {
		end := partEnd(text)
		part, text = bytes.TrimSpace(text[:end]), text[end+1:]
		return part
	}
	for text = text[1:]; len(bytes.TrimSpace(text)) > len("}"); {
		name, value := next(), next()
		var key string
		_ = json.Unmarshal(name, &key) // Names in valid JSON are strings, so Unmarshal does not fail.
		target := &parts.at
		switch key {
		case "at":
		case "request":
			target = &parts.request
		case "answer":
			target = &parts.answer
		case "lost":
			target = &parts.lost
		default:
			return parts, invalidLine("remove it", "unknown key %s", brief(name))
		}
		if *target != nil {
			return parts, invalidLine("remove one", "%q is there twice", key)
		}
		*target = value
	}
	switch {
	case parts.at == nil:
		return parts, invalidLine(`add "at": "1.5s", a time after the start, or an instant`, `there is no "at"`)
	case parts.request == nil && parts.lost == nil:
		return parts, invalidLine(`add "request": {...}, a RateLimitRequest as proto3 JSON`, `there is no "request"`)
	}
	return parts, nil
}

// syntaxProblem returns why text is not JSON.
func syntaxProblem(text []byte) string {
	err := json.Unmarshal(text, new(json.RawMessage))
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("column %d: %v", e.Offset, e)
	}
	return fmt.Sprint(err)
}

// partEnd returns the index of the comma, colon or brace that ends the first name or value of a valid object's rest.
func partEnd(text []byte) int {
	depth, inString := 0, false
	for i := 0; ; i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case depth == 0 && (c == ',' || c == ':' || c == '}'):
			return i
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
}

// brief returns text for a message, cut to 60 bytes.
func brief(text []byte) string {
	const most = 60
	if len(text) > most {
		return fmt.Sprintf("%s... (%d bytes)", bytes.ToValidUTF8(text[:most], nil), len(text))
	}
	return string(text)
}
