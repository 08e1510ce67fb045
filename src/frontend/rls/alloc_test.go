//go:build !race

package rls

import (
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// The race detector empties pools at random, so this runs without it: see `make test`. A call of as many descriptors as
// are allowed reuses memory, too.
func TestAnswersDoNotAllocate(t *testing.T) {
	requests := [][]byte{manyIPs(limiter.MaxDescriptors)}
	for _, msg := range usual()[:9] {
		requests = append(requests, encode(t, msg))
	}
	for _, headers := range headerFormats {
		f := wireFixture(t, headers)
		for i, data := range requests {
			var in mem.Buffer = mem.SliceBuffer(data)
			ctx := t.Context()
			ask := func() {
				if err := f.askBuffer(ctx, in); err != nil {
					t.Fatal(err)
				}
			}
			for range 10 {
				ask()
			}
			if n := testing.AllocsPerRun(100, ask); n > 0 {
				t.Errorf("request %d, headers %d: %v allocations", i, headers, n)
			}
		}
	}
}

// A call that needs far more memory than most leaves none behind.
func TestHugeCallsLeaveNoMemory(t *testing.T) {
	f := start(t, nil)
	huge := &callMemory{
		requestDecoder: requestDecoder{entries: make([]rules.Entry, maxRequestEntries)},
		fromLargePool:  true,
	}
	f.releaseCall(huge)
	if f.largeCallPool.Get().(*callMemory) == huge {
		t.Errorf("a call with %d entries is kept", maxRequestEntries)
	}
	f.releaseCall(&callMemory{
		requestDecoder: requestDecoder{entries: make([]rules.Entry, limiter.MaxDescriptors)},
		fromLargePool:  true,
	})
	if waits := f.smallCallPool.Get().(*callMemory); cap(waits.entries) > 0 {
		t.Errorf("a call that has no turn yet has %d entries", cap(waits.entries))
	}
	long := &reply{encodedMessage: make([]byte, 1<<20), fromLargePool: true}
	long.Put(nil)
	if newReply(limiter.MaxDescriptors) == long {
		t.Errorf("a reply of %d bytes is kept", len(long.encodedMessage))
	}
}

// TestBatchesDoNotAllocate checks calls over a port, whose answers are always the same.
func TestBatchesDoNotAllocate(t *testing.T) {
	for _, headers := range headerFormats {
		f := wireFixture(t, headers)
		_, conn := dial(t, f, ServerConfig{})
		raw, err := net.Dial("tcp", conn.Target())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = raw.Close() }()
		msg := request(descriptor("ip", "1"), descriptor("pay", "2"))
		for _, d := range msg.GetDescriptors() {
			d.HitsAddend = wrapperspb.UInt64(0)
		}
		c := newBatchClient(t, raw)
		c.call(t, "1S", encode(t, msg))
		perAnswer := c.answerBytes(t)
		const calls = 32
		for range calls {
			c.call(t, "1S", encode(t, msg))
		}
		sent, received := c.unsent.Bytes(), make([]byte, calls*perAnswer)
		ask := func() {
			if _, err := raw.Write(sent); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(raw, received); err != nil {
				t.Fatal(err)
			}
			for at := 0; at < len(sent); at += 9 + int(sent[at])<<16 + int(sent[at+1])<<8 + int(sent[at+2]) {
				id := sent[at+5:]
				binary.BigEndian.PutUint32(id, binary.BigEndian.Uint32(id)+2*calls)
			}
		}
		for range 20 {
			ask()
		}
		if n := testing.AllocsPerRun(200, ask); n > 0 {
			t.Errorf("headers %d: %v allocations for %d calls", headers, n, calls)
		}
		if failed := f.failed(); len(failed) > 0 {
			t.Error(failed)
		}
	}
}

// answerBytes sends the first call, and returns how many bytes its answer has.
func (c *batchClient) answerBytes(t *testing.T) (n int) {
	t.Helper()
	if _, err := c.net.Write(c.unsent.Bytes()); err != nil {
		t.Fatal(err)
	}
	c.unsent.Reset()
	frames := http2.NewFramer(nil, c.net)
	for isLast := false; !isLast; {
		f, err := frames.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if h := f.Header(); h.StreamID > 0 {
			n += 9 + int(h.Length)
			isLast = h.Type == http2.FrameHeaders && h.Flags.Has(http2.FlagHeadersEndStream)
		}
	}
	return n
}

// estimateJSONMemory is an upper bound of the bytes that a large body, its decision and its reply
// allocate.
func TestAllocatedForJSON(t *testing.T) {
	descriptors := func(n int, text string) string {
		return `{"domain":"d","descriptors":[` + strings.TrimSuffix(strings.Repeat(text+",", n), ",") + `]}`
	}
	longest := strings.Repeat("1", 1_000_000)
	for name, body := range map[string]string{
		"entries":        manyJSON(1000, 16),
		"long entries":   strings.ReplaceAll(manyJSON(1000, 16), `"a"`, `"`+strings.Repeat("a", 30)+`"`),
		"entries of one": manyJSON(1, 16_000),
		"empty entries":  descriptors(1, `{"entries":[`+strings.Repeat("{},", 15_999)+`{}]}`),
		"descriptors":    manyJSON(1000, 1),
		"limits": descriptors(1000,
			`{"entries":[{"key":"ip","value":"1"}],"limit":{"requestsPerUnit":1,"unit":"DAY","unitMultiplier":3},"hitsAddend":"1"}`),
		"too many descriptors": descriptors(17_990, "{}"),
		"long value":           `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"` + longest + `"}]}]}`,
		"escaped value": `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"` + strings.Repeat(`\n`,
			500_000) + `"}]}]}`,
		"long number": `{"domain":` + longest + `}`,
		"long name":   `{"` + longest + `":1}`,
	} {
		for i := range 4 {
			metadata, policies := i&1 > 0, i&2 > 0
			f := start(t, nil)
			f.cfg.MetadataEnabled = metadata
			f.cfg.HeaderNames = &HeaderNames{Limit: "x-limit", Remaining: "x-remaining", Reset: "x-reset", Policies: policies}
			allocated := func() uint64 {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.TotalAlloc
			}
			text := []byte(body)
			before := allocated()
			_, _, _ = f.answerJSON(t.Context(), http.Header{}, text) // some are no requests
			if took, most := int64(allocated()-before), f.estimateJSONMemory(text); took > most {
				t.Errorf("%s, metadata %t, policies %t: %d bytes for a body of %d, at most %d are charged", name, metadata,
					policies, took, len(body), most)
			}
		}
	}
}
