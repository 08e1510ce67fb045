package divvy

import (
	"bytes"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/limitertest"
)

// play returns the replies to a client that sends these packets.
func play(s *Server, packets ...[]byte) string {
	return harness.PlayPackets(s.StartConn, nil, packets...)
}

// wellFormed is any number of OKs and at most one ERR, which is the end.
var wellFormed = regexp.MustCompile(
	`^(?:OK true \d+ \d+\n|OK false 0 (?:-1|\d+)\n)*(?:ERR (?:unknown|unknown-command) "[^\r\n]*"\n)?$`)

// FuzzStream checks that any input is answered in well-formed lines, one for each, and
// that neither packets nor pipelining change a byte.
func FuzzStream(f *testing.F) {
	set := load(f, kitchen, pantry)
	fresh := func(t *testing.T, pipelined int) *Server {
		store := limitertest.Store(t, memory.Config{})
		l := limiter.New(limiter.Config{Backend: store})
		l.UseRules(set)
		cfg := Config{Limiter: l, DomainKey: "d", Domain: "kitchen", MaxLineBytes: 64}
		cfg.MaxPipelined = pipelined
		cfg.OnPanic = func(value any, _ []byte) { t.Errorf("panic: %v", value) }
		return build(t, cfg)
	}
	for _, seed := range []string{
		"HIT ip=1\nHIT ip=1\r\nHIT ip=1 d=pantry\nHIT ip=1\nHIT ip=2",
		"HIT cookie=\"б 🍪\"\nHIT ip=10.0.0.7\nHIT staff=x\nEGGPLANT\nHIT ip=1\n",
		"HIT user=x action=y\nHIT user=x\nHIT ip=\xff\xf0\x9f\nHIT a b\n",
		"HIT ip=1\n" + strings.Repeat("x", 64) + "\r\n", "HIT ip=1\nHIT ip=" + strings.Repeat("x", 59) + "\r\n",
		"\n", "\r\n\n", "HIT d=\nHIT\n", "HIT \"a\x00\"=\n\xef\xbb\xbfHIT\n",
	} {
		f.Add([]byte(seed), uint64(len(seed)))
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		s := fresh(t, 128)
		whole := play(s, harness.CutPackets(stream, func() int { return len(stream) })...)
		if !wellFormed.MatchString(whole) {
			t.Fatalf("%q is answered %q", stream, whole)
		}
		hits, errs := uint64(0), uint64(0)
		for reply := range strings.Lines(whole) {
			if strings.HasPrefix(reply, "OK") {
				hits++
			} else {
				errs++
			}
		}
		if st := s.Stats(); st.Answered != hits ||
			st.ErrorReplies["unknown"]+st.ErrorReplies["unknown-command"] != errs || st.Open != 0 {
			t.Errorf("%q: %d hits and %d errors are counted as %+v", stream, hits, errs, st)
		}
		random := rand.New(rand.NewPCG(seed, 1))
		for name, size := range map[string]func() int{
			"by the byte": func() int { return 1 },
			"at random":   func() int { return 1 + random.IntN(40) },
		} {
			if got := play(fresh(t, 1+random.IntN(5)), harness.CutPackets(stream, size)...); got != whole {
				t.Errorf("%q: %s %q, at once %q", stream, name, got, whole)
			}
		}
		// Each line on a connection of its own.
		alone, one := fresh(t, 1), ""
		for line := range bytes.Lines(stream) {
			reply := play(alone, line)
			if one += reply; strings.HasPrefix(reply, "ERR ") {
				break
			}
		}
		if one != whole {
			t.Errorf("%q: alone %q, together %q", stream, one, whole)
		}
	})
}

// A batch in the pool points to no rules and no buffers.
func TestBatchLetsGo(t *testing.T) {
	s := build(t, Config{})
	play(s, []byte("HIT ip=1\nHIT ip=2\nHIT ip=\xff\n"))
	b := s.newBatch(t.Context(), nil)
	defer b.returnToPool()
	if len(b.entries)+len(b.repairedLines)+len(b.requests.Items()) > 0 {
		t.Errorf("left: %+v", b)
	}
	if slices.ContainsFunc(b.entries[:cap(b.entries)], func(e rules.Entry) bool { return e.Key != nil }) {
		t.Error("entries point to lines")
	}
	it := b.requests.Add()
	for _, d := range it.Request.Descriptors[:cap(it.Request.Descriptors)] {
		if d.Entries != nil {
			t.Error("descriptors point to entries")
		}
	}
	for _, st := range it.Answer.Statuses[:cap(it.Answer.Statuses)] {
		if st.Match != nil || st.Charges != nil {
			t.Error("statuses point to rules")
		}
	}
}
