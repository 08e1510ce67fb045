package resp

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/rules"
	"ratelimit/testbed/harness"
)

// FuzzStream checks that any input gets well-formed replies, at least one for each command that is not empty, and that
// neither packets nor pipelining change a byte of them.
func FuzzStream(f *testing.F) {
	for _, seed := range [][]byte{
		slices.Concat(bulk("RATELIMIT", "api", "user", "a"), bulk("RATELIMIT", "api", "user", "a", "HITS", "9"),
			bulk("CL.THROTTLE", "k", "1", "1", "1"), bulk("PING")),
		slices.Concat(bulk("HELLO", "3"), bulk("RATELIMIT.TREE", "limits", "2", "user", "alex", "trade"),
			bulk("COMMAND", "DOCS"), bulk("CLIENT", "GETNAME")),
		slices.Concat(bulk("RATELIMIT", "none", "a", "b"), bulk("GET", "\r\n"), bulk("RATELIMIT", "api", "user", "a", "DRY"),
			bulk("QUIT"), bulk("PING")),
		[]byte("PING\r\nRATELIMIT api user b HITS 0 REFUND\n\r\nCL.THROTTLE k -1 1 1\n*0\r\n*1\r\n$1\r\nx\r\n*1\r\n$x"),
		[]byte("CLIENT SETNAME a\nCLIENT LIST\nINFO\nCOMMAND\nSELECT 0\nAUTH x\n"),
		[]byte("RATELIMIT.RESET api user a\nRATELIMIT.EXPLAIN api user a\nPOST / HTTP/1.1\n"),
	} {
		f.Add(seed, uint64(len(seed)))
	}
	fresh := func(t *testing.T, pipelined int) *Server {
		return build(t, Config{Config: pipeline.Config{MaxPipelined: pipelined, MaxInputBytes: minCommandBytes}})
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		if bytes.Contains(bytes.ToUpper(stream), []byte("INFO")) || bytes.Contains(bytes.ToUpper(stream), []byte("LIST")) {
			return // These tell times.
		}
		s := fresh(t, 128)
		whole := play(s, elsewhere, harness.CutPackets(stream, func() int { return len(stream) })...)
		replies := splitReplies(t, whole)
		errs := uint64(0)
		for _, r := range replies {
			if strings.HasPrefix(r, "-") {
				errs++
			}
		}
		st, counted := s.Stats(), uint64(0)
		for _, n := range st.ErrorReplies {
			counted += n
		}
		if st.Open != 0 || counted != errs || uint64(len(replies)) > st.Answered+1 {
			t.Errorf("%q: %d replies, %d errors, %+v", stream, len(replies), errs, st)
		}
		random := rand.New(rand.NewPCG(seed, 1))
		for name, size := range map[string]func() int{
			"by the byte": func() int { return 1 },
			"at random":   func() int { return 1 + random.IntN(40) },
		} {
			if got := play(fresh(t, 1+random.IntN(5)), elsewhere, harness.CutPackets(stream, size)...); got != whole {
				t.Errorf("%q: %s %q, at once %q", stream, name, got, whole)
			}
		}
	})
}

// A batch in the pool points to no commands of clients.
func TestBatchLetsGo(t *testing.T) {
	s := build(t, Config{})
	play(s, elsewhere, bulk("RATELIMIT", "api", "user", "a"), bulk("RATELIMIT.TREE", "limits", "1", "user", "alex"),
		bulk("RATELIMIT", "api", "user", "a", "DRY"))
	b := s.newBatch(t.Context(), nil)
	defer b.returnToPool()
	if len(b.writers)+len(b.many.Items()) > 0 {
		t.Errorf("left: %+v", b)
	}
	isSet := func(e rules.Entry) bool { return e.Key != nil || e.Value != nil }
	if slices.ContainsFunc(b.entries[:cap(b.entries)], isSet) ||
		slices.ContainsFunc(b.scratch.entries[:cap(b.scratch.entries)], isSet) {
		t.Error("entries point to commands")
	}
	if slices.ContainsFunc(b.args[:cap(b.args)], func(arg []byte) bool { return arg != nil }) {
		t.Error("arguments point to commands")
	}
}
