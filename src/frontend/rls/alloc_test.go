//go:build !race

package rls

import (
	"net/http"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// The race detector empties pools at random, so this runs without it: see
// `make test`.
func TestAnswersDoNotAllocate(t *testing.T) {
	for _, headers := range []bool{false, true} {
		f := wireFixture(t, headers)
		for i, msg := range usual()[:8] {
			var in mem.Buffer = mem.SliceBuffer(encode(t, msg))
			ctx := t.Context()
			ask := func() {
				c := f.smallCallPool.Get().(*callMemory)
				c.receivedMessage = in
				out, err := f.answerGRPC(ctx, c)
				if err != nil {
					t.Fatal(err)
				}
				out.Put(nil)
				f.releaseCall(c)
			}
			for range 10 {
				ask()
			}
			if n := testing.AllocsPerRun(100, ask); n > 0 {
				t.Errorf("request %d, headers %t: %v allocations", i, headers, n)
			}
		}
	}
}

// A call of as many descriptors as are allowed reuses memory; one that needs far more
// leaves none behind.
func TestLargeAnswersDoNotAllocate(t *testing.T) {
	for _, headers := range []bool{false, true} {
		f := wireFixture(t, headers)
		data := manyIPs(limiter.MaxDescriptors)
		var in mem.Buffer = mem.SliceBuffer(data)
		ctx := t.Context()
		ask := func() {
			c := f.smallCallPool.Get().(*callMemory)
			c.receivedMessage = in
			out, err := f.answerGRPC(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			out.Put(nil)
			f.releaseCall(c)
		}
		for range 10 {
			ask()
		}
		if n := testing.AllocsPerRun(100, ask); n > 0 {
			t.Errorf("headers %t: %v allocations", headers, n)
		}
	}
	f := start(t, nil)
	huge := &callMemory{requestDecoder: requestDecoder{entries: make([]rules.Entry, maxRequestEntries)}, fromLargePool: true}
	f.releaseCall(huge)
	if f.largeCallPool.Get().(*callMemory) == huge {
		t.Errorf("a call with %d entries is kept", maxRequestEntries)
	}
	f.releaseCall(&callMemory{requestDecoder: requestDecoder{entries: make([]rules.Entry, limiter.MaxDescriptors)}, fromLargePool: true})
	if waits := f.smallCallPool.Get().(*callMemory); cap(waits.entries) > 0 {
		t.Errorf("a call that has no turn yet has %d entries", cap(waits.entries))
	}
	long := &reply{encodedMessage: make([]byte, 1<<20), fromLargePool: true}
	long.Put(nil)
	if newReply(limiter.MaxDescriptors) == long {
		t.Errorf("a reply of %d bytes is kept", len(long.encodedMessage))
	}
}

// estimateJSONMemory is an upper bound of the bytes that a large body, its decision and its reply
// allocate.
func TestAllocatedForJSON(t *testing.T) {
	descriptors := func(n int, text string) string {
		return `{"domain":"d","descriptors":[` + strings.TrimSuffix(strings.Repeat(text+",", n), ",") + `]}`
	}
	longest := strings.Repeat("1", 1_000_000)
	for name, body := range map[string]string{
		"entries":              manyJSON(1000, 16),
		"long entries":         strings.ReplaceAll(manyJSON(1000, 16), `"a"`, `"`+strings.Repeat("a", 30)+`"`),
		"entries of one":       manyJSON(1, 16_000),
		"empty entries":        descriptors(1, `{"entries":[`+strings.Repeat("{},", 15_999)+`{}]}`),
		"descriptors":          manyJSON(1000, 1),
		"limits":               descriptors(1000, `{"entries":[{"key":"ip","value":"1"}],"limit":{"requestsPerUnit":1,"unit":"DAY","unitMultiplier":3},"hitsAddend":"1"}`),
		"too many descriptors": descriptors(17_990, "{}"),
		"long value":           `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"` + longest + `"}]}]}`,
		"escaped value":        `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"` + strings.Repeat(`\n`, 500_000) + `"}]}]}`,
		"long number":          `{"domain":` + longest + `}`,
		"long name":            `{"` + longest + `":1}`,
	} {
		for _, metadata := range []bool{false, true} {
			f := start(t, nil)
			f.cfg.MetadataEnabled = metadata
			f.cfg.HeaderNames = &HeaderNames{Limit: "x-limit", Remaining: "x-remaining", Reset: "x-reset"}
			allocated := func() uint64 {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.TotalAlloc
			}
			text := []byte(body)
			before := allocated()
			_, _, _ = f.answerJSON(t.Context(), http.Header{}, text) // some are no requests
			if took, most := int64(allocated()-before), f.estimateJSONMemory(text); took > most {
				t.Errorf("%s, metadata %t: %d bytes for a body of %d, at most %d are charged", name, metadata, took, len(body), most)
			}
		}
	}
}
