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
	maxTextBytes    = 64  // maxTextBytes bounds a key or a value.
	maxNameBytes    = 256 // maxNameBytes bounds a domain or the name of a rule.
	maxShownEntries = 16  // maxShownEntries bounds the entries of a descriptor. Further ones are only counted.
)

// Denial is a denied request, or a denied descriptor of a request with independent descriptors.
type Denial struct {
	Domain string
	// Rule is the name of the rule that refused. It is empty for a limit that came with the request.
	Rule string
	// Descriptor is the descriptor, as key=value,key=value. Each key and value is cut at 64
	// bytes. One with blanks, commas, control characters and the like is quoted as in Go.
	Descriptor string
	// RetryAfter is the time after which the same request would be allowed. algorithm.Never: it will never be.
	RetryAfter time.Duration
	// StoreFailed is set if the request was denied because the store did not answer.
	StoreFailed bool
	// SkippedDenials is the number of denials since the last sample, which were not sampled.
	SkippedDenials uint64
}

// Sampler is a limiter.Recorder that samples denials.
type Sampler struct {
	maxPerSecond int
	logDenial    func(Denial)

	mu                  sync.Mutex // mu guards the fields below.
	lastSecond          int64      // lastSecond is the Unix time of the last sample.
	samplesInLastSecond int
	skippedSinceSample  uint64
}

// New returns a Sampler that calls log for the first perSecond denials of each second of the
// clock. log runs on the goroutine of the request, so it must not block.
func New(perSecond int, log func(Denial)) *Sampler {
	return &Sampler{maxPerSecond: perSecond, logDenial: log}
}

// Record implements limiter.Recorder. It allocates memory only for samples.
func (s *Sampler) Record(req *limiter.Request, a *limiter.Answer) {
	if a.Over {
		s.recordDenied(time.Now(), req, a)
	}
}

// recordDenied samples the descriptor with the longest wait, or each denied independent descriptor.
func (s *Sampler) recordDenied(now time.Time, req *limiter.Request, a *limiter.Answer) {
	if req.IndependentDescriptors {
		for i := range a.Statuses {
			if a.Statuses[i].Over {
				s.sampleDenial(now, req, a, i)
			}
		}
		return
	}
	binding := -1
	for i := range a.Statuses {
		st := &a.Statuses[i]
		if st.StoreFailed {
			return // A failed request gets an error instead of a denial.
		}
		if st.Over && (binding < 0 || st.RetryAfter > a.Statuses[binding].RetryAfter) {
			binding = i
		}
	}
	if binding >= 0 {
		s.sampleDenial(now, req, a, binding)
	}
}

// sampleDenial logs the denial of descriptor i, unless this second already has enough samples.
func (s *Sampler) sampleDenial(now time.Time, req *limiter.Request, a *limiter.Answer, i int) {
	skipped, ok := s.countDenial(now)
	if !ok {
		return
	}
	st := &a.Statuses[i]
	d := Denial{
		Descriptor: descriptorText(req.Descriptors[i].Entries), RetryAfter: st.RetryAfter,
		StoreFailed: st.Fallback == backend.FallbackDeny, SkippedDenials: skipped,
	}
	if a.Domain != nil {
		d.Domain = cutText(a.Domain.Name, maxNameBytes)
	}
	if c := st.BindingCharge; c != nil && c.Rule != nil {
		d.Rule = cutText(c.Rule.FullName, maxNameBytes)
	}
	s.logDenial(d)
}

// countDenial counts a denial and reports whether to sample it. skipped is the number of denials since the last sample.
func (s *Sampler) countDenial(now time.Time) (skipped uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if second := now.Unix(); second != s.lastSecond {
		s.lastSecond, s.samplesInLastSecond = second, 0
	}
	if s.samplesInLastSecond >= s.maxPerSecond {
		s.skippedSinceSample++
		return 0, false
	}
	s.samplesInLastSecond++
	skipped, s.skippedSinceSample = s.skippedSinceSample, 0
	return skipped, true
}

// descriptorText returns entries as key=value,key=value.
func descriptorText(entries []rules.Entry) string {
	var b strings.Builder
	for i, e := range entries {
		if i > 0 {
			b.WriteByte(',')
		}
		if i == maxShownEntries {
			fmt.Fprintf(&b, "… (%d more)", len(entries)-i)
			break
		}
		b.WriteString(boundedText(e.Key))
		if len(e.Value) > 0 {
			b.WriteByte('=')
			b.WriteString(boundedText(e.Value))
		}
	}
	return b.String()
}

// boundedText returns at most maxTextBytes bytes of text. It quotes text that contains blanks, commas, =,
// double quotes or unprintable characters.
func boundedText(text []byte) string {
	s := cutText(string(text[:min(len(text), maxTextBytes+1)]), maxTextBytes) // The extra byte shows cutText that the text is longer.
	for _, c := range s {
		if c == utf8.RuneError || c <= ' ' || c == ',' || c == '=' || c == '"' || !strconv.IsPrint(c) {
			return strconv.Quote(s)
		}
	}
	return s
}

// cutText returns text. If text is longer than size bytes, it returns the whole characters within these bytes and "…".
func cutText(text string, size int) string {
	if len(text) <= size {
		return text
	}
	for size > 0 && !utf8.RuneStart(text[size]) {
		size--
	}
	return text[:size] + "…"
}
