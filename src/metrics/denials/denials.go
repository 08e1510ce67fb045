// Package denials chooses some of the denied requests for the log, with their descriptor, the
// rule and the time to wait.
package denials

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Bounds on the texts of a Denial. Sizes are in bytes, without quotes.
const (
	maxText    = 64  // a key or a value
	maxName    = 256 // the domain, or the name of the rule
	maxEntries = 16  // entries of the descriptor
)

// Denial is a denied request, or a denied descriptor of a request with independent descriptors.
type Denial struct {
	Domain string
	// Rule is the name of the rule that refused. It is empty for a limit that came with the
	// request.
	Rule string
	// Subject is the descriptor, as key=value,key=value. Each key and value is cut at 64
	// bytes. One with blanks, commas, control characters and the like is quoted as in Go.
	Subject string
	// Wait is the time after which the same request would be allowed. algorithm.Never: it
	// will never be.
	Wait time.Duration
	// StoreFailed is set if the request was denied because the store did not answer.
	StoreFailed bool
	// Skipped is the number of denials since the last sample, which were not sampled.
	Skipped uint64
}

// Sampler is a limiter.Recorder that samples denials.
type Sampler struct {
	most int // samples in a second
	log  func(Denial)

	mu      sync.Mutex // guards the fields below
	second  int64      // Unix time of the last sample
	samples int        // in second
	skipped uint64     // denials since the last sample
}

// New returns a Sampler that calls log for the first perSecond denials of each second of the
// clock. log runs on the goroutine of the request, so it must not block.
func New(perSecond int, log func(Denial)) *Sampler { return &Sampler{most: perSecond, log: log} }

// Record implements limiter.Recorder. It allocates memory only for samples.
func (s *Sampler) Record(req *limiter.Request, a *limiter.Answer) {
	if a.Over {
		s.record(time.Now(), req, a)
	}
}

// record samples the descriptor with the longest wait, or each denied independent descriptor.
func (s *Sampler) record(now time.Time, req *limiter.Request, a *limiter.Answer) {
	if req.Independent {
		for i := range a.Statuses {
			if a.Statuses[i].Over {
				s.sample(now, req, a, i)
			}
		}
		return
	}
	binding := -1
	for i := range a.Statuses {
		st := &a.Statuses[i]
		if st.Failed {
			return // the answer is an error
		}
		if st.Over && (binding < 0 || limiter.Longer(st.RetryAfter, a.Statuses[binding].RetryAfter)) {
			binding = i
		}
	}
	if binding >= 0 {
		s.sample(now, req, a, binding)
	}
}

// sample logs the denial of descriptor i, unless this second already has enough samples.
func (s *Sampler) sample(now time.Time, req *limiter.Request, a *limiter.Answer, i int) {
	skipped, ok := s.allow(now)
	if !ok {
		return
	}
	st := &a.Statuses[i]
	d := Denial{
		Subject: subject(req.Descriptors[i].Entries), Wait: st.RetryAfter,
		StoreFailed: st.Fallback == backend.FallbackDeny, Skipped: skipped,
	}
	if a.Domain != nil {
		d.Domain = cut(a.Domain.Name, maxName)
	}
	if c := st.Binding; c != nil && c.Rule != nil {
		d.Rule = cut(c.Rule.Key, maxName)
	}
	s.log(d)
}

// allow counts a denial and reports whether to sample it. skipped is the number of denials
// since the last sample.
func (s *Sampler) allow(now time.Time) (skipped uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if second := now.Unix(); second != s.second {
		s.second, s.samples = second, 0
	}
	if s.samples >= s.most {
		s.skipped++
		return 0, false
	}
	s.samples++
	skipped, s.skipped = s.skipped, 0
	return skipped, true
}

// subject returns entries as key=value,key=value.
func subject(entries []rules.Entry) string {
	var b strings.Builder
	for i, e := range entries {
		if i > 0 {
			b.WriteByte(',')
		}
		if i == maxEntries {
			fmt.Fprintf(&b, "… (%d more)", len(entries)-i)
			break
		}
		b.WriteString(plain(e.Key))
		if len(e.Value) > 0 {
			b.WriteByte('=')
			b.WriteString(plain(e.Value))
		}
	}
	return b.String()
}

// plain returns at most maxText bytes of text. It quotes text that contains blanks, commas, =,
// double quotes or unprintable characters.
func plain(text []byte) string {
	s := cut(string(text[:min(len(text), maxText+1)]), maxText) // with one byte more, cut marks a cut text
	for _, c := range s {
		if c == utf8.RuneError || c <= ' ' || c == ',' || c == '=' || c == '"' || !strconv.IsPrint(c) {
			return strconv.Quote(s)
		}
	}
	return s
}

// cut returns text. If text is longer than size bytes, it returns the whole characters within
// these bytes and "…".
func cut(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size] + "…"
}
