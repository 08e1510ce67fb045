// Package denials samples denied requests for the log: the descriptor, the rule and how
// long to wait.
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

// Bounds on the texts of a Denial, in bytes, before they are quoted.
const (
	maxText    = 64  // a key or a value
	maxName    = 256 // the domain, and the name of the rule
	maxEntries = 16
)

// Denial is a sampled request that was refused, or one of its independent descriptors.
type Denial struct {
	Domain string
	// Rule is the name of the rule that refused; empty: a limit that came with the
	// request.
	Rule string
	// Subject is the descriptor, key=value,key=value. Each key and value is cut at 64
	// bytes, and quoted as in Go where it has other than plain characters.
	Subject string
	// Wait is how long the same request must wait; algorithm.Never: it never passes.
	Wait time.Duration
	// StoreFailed is set if it was refused because the store did not answer.
	StoreFailed bool
	// Skipped is how many denials were not sampled since the last sample.
	Skipped uint64
}

// Sampler is a limiter.Recorder that reports some of the denials.
type Sampler struct {
	most int
	log  func(Denial)

	mu      sync.Mutex // guards what follows
	second  int64      // Unix time of the last sample
	samples int        // in second
	skipped uint64     // denials since the last sample
}

// New returns a Sampler that calls log for the first perSecond denials of each second
// of the clock. The goroutine of the request calls log, which must not block.
func New(perSecond int, log func(Denial)) *Sampler { return &Sampler{most: perSecond, log: log} }

// Record implements limiter.Recorder. It allocates only for samples.
func (s *Sampler) Record(req *limiter.Request, a *limiter.Answer) {
	if a.Over {
		s.record(time.Now(), req, a)
	}
}

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

// sample reports the denial of descriptor i if there is room for it in this second.
func (s *Sampler) sample(now time.Time, req *limiter.Request, a *limiter.Answer, i int) {
	skipped, ok := s.room(now)
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

// room reports whether now's second has room for one more sample, and counts the denial.
func (s *Sampler) room(now time.Time) (skipped uint64, ok bool) {
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

// subject returns entries as text for people.
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

// plain returns text, cut, and in quotes if it has other than plain characters.
func plain(text []byte) string {
	s := cut(string(text[:min(len(text), maxText+1)]), maxText) // one byte more shows cut that the text goes on
	for _, c := range s {
		if c == utf8.RuneError || c <= ' ' || c == ',' || c == '=' || c == '"' || !strconv.IsPrint(c) {
			return strconv.Quote(s)
		}
	}
	return s
}

// cut returns text, or its first size bytes at most and a mark. It does not split a
// character.
func cut(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size] + "…"
}
