package store

import (
	"context"
	"slices"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/fallback"
)

// What is said of an outage, look by look.
func TestOutageLog(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	var l outageLog
	var hits [4]uint64
	look := func(seconds int, since int, known bool, silent ...string) (said []string) {
		lines, ended := l.lines(outageView{
			at: start.Add(time.Duration(seconds) * time.Second), since: start.Add(time.Duration(since) * time.Second),
			silent: silent, fallback: fallback.Stats{UnansweredHits: hits}, replicasKnown: known,
		})
		if ended != nil {
			lines = append(lines, ended.text(nil), ended.text([]string{"Redis"}))
		}
		return lines
	}
	expect := func(got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	expect(look(0, 0, true))
	expect(look(1, 1, true, "Redis")) // for less than a second
	expect(look(2, 2, true))
	hits[backend.FallbackAllow] = 100
	expect(look(3, 3, true, "Redis"))
	hits[backend.FallbackAllow], hits[backend.FallbackLocal], hits[backend.FallbackError] = 1000, 1, 7
	expect(look(4, 3, true, "Redis"))
	expect(look(61, 3, true, "Redis"))
	expect(look(62, 3, true, "Redis"),
		"no answer from Redis for 59s; on_store_failure decided 1001 hits (1000 allow, 1 local) in the last 1m0s")
	hits[backend.FallbackError] = 9
	expect(look(122, 3, true, "Redis")) // The front ends log errors.
	hits[backend.FallbackDeny] = 1
	expect(look(182, 3, true, "Redis"), "no answer from Redis for 2m59s; on_store_failure decided 1 hit (1 deny) in the last 1m0s")
	const over = "Redis answers again after 3m0s; on_store_failure decided 1002 hits (1000 allow, 1 deny, 1 local)"
	expect(look(183, 183, true), over, over+"; Redis came back without what this service had stored, so counters start again")
	expect(look(184, 184, true))
	const unknown = "on_store_failure: local decides, and it is unknown how many replicas there are: each admits the whole " +
		"limit; set REPLICAS to their number"
	hits[backend.FallbackLocal]++
	expect(look(185, 185, false, "Redis"), unknown)
	hits[backend.FallbackLocal]++
	expect(look(244, 185, false, "Redis"))
	hits[backend.FallbackLocal]++
	expect(look(245, 185, false, "Redis"), // a minute later
		"no answer from Redis for 1m0s; on_store_failure decided 3 hits (3 local) in the last 1m1s", unknown)
	expect(look(246, 246, false), "Redis answers again after 1m1s; on_store_failure decided 3 hits (3 local)",
		"Redis answers again after 1m1s; on_store_failure decided 3 hits (3 local); Redis came back without what this "+
			"service had stored, so counters start again")
}

// texts is a store of texts.
type texts struct {
	client
	byKey map[string][]byte
	err   error
}

func (s *texts) SetText(_ context.Context, key string, text []byte, _ time.Duration) error {
	if s.err == nil {
		s.byKey[key] = text
	}
	return s.err
}

func (s *texts) Text(_ context.Context, key string) ([]byte, error) { return s.byKey[key], s.err }

// A store that has lost its counters has lost the mark, too. One that fails has lost nothing, as far as is known.
func TestMark(t *testing.T) {
	t.Parallel()
	store := &texts{byKey: make(map[string][]byte), err: context.DeadlineExceeded}
	m := mark{pool: &Pool{client: store, pingTimeout: time.Second}, key: "k"}
	m.renew(t.Context())
	store.err = nil
	if m.isLost(t.Context()) {
		t.Error("a mark that was never written is lost")
	}
	m.triedAt = time.Time{}
	m.renew(t.Context())
	store.err = context.DeadlineExceeded
	if m.isLost(t.Context()) {
		t.Error("a store that does not answer has lost the mark")
	}
	store.err = nil
	if m.isLost(t.Context()) {
		t.Error("the mark is there, and lost")
	}
	clear(store.byKey)
	if !m.isLost(t.Context()) || m.isLost(t.Context()) {
		t.Error("a lost mark is lost once")
	}
	m.renew(t.Context())
	if store.byKey["k"] == nil {
		t.Error("a lost mark is not written again")
	}
	m.writtenAt = time.Now().Add(-markTTL)
	clear(store.byKey)
	if m.isLost(t.Context()) {
		t.Error("the mark may have expired")
	}
}
