package redis

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/testbed/redistest"
)

func TestScriptsSurviveAFlush(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr})
	h := backend.Hit{Key: []byte("k_"), Limit: window(100, time.Hour), Amount: 1, Atomic: true}
	for i := range uint64(5) {
		if v := send(t, s, h); v.Err != nil || v.After != i+1 {
			t.Errorf("hit %d: %+v", i, v)
		}
		server.Do(t, "SCRIPT", "FLUSH")
	}
}

// Hits on one key keep their order when Redis does not know the script.
func TestScriptsKeepTheirPlace(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr})
	for i := range 3 {
		server.Do(t, "SCRIPT", "FLUSH")
		key := fmt.Appendf(nil, "k%d_", i)
		b := backend.Batch{Now: epoch, Verdicts: make([]backend.Verdict, 2), Hits: []backend.Hit{
			{Key: key, Limit: window(10, time.Hour), Amount: 2, Op: algorithm.Refund},
			{Key: key, Limit: window(10, time.Hour), Amount: 1, GroupID: 1},
		}}
		if err := s.Take(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		if v := b.Verdicts; v[0].Err != nil || v[1].Err != nil || v[0].Before != 0 || v[1].After != 1 {
			t.Errorf("got %+v", v)
		}
		if got := fmt.Sprint(server.Do(t, "GET", string(key)+"1767225600")); got != "1" {
			t.Errorf("%s is counted, want 1", got)
		}
	}
}

// A batch whose scripts Redis did not know, and did not answer when it got them
// in full, failed.
func TestScriptsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	s := open(t, Config{Addr: parrot(t, func(words []string) string {
		if words[0] == "EVALSHA" {
			return "-NOSCRIPT no\r\n"
		}
		return "?\r\n"
	})})
	h := hot(0)
	h.Atomic = true
	if v := send(t, s, h); v.Err == nil {
		t.Errorf("got %+v", v)
	}
	if st := s.Stats(); st.Batches != 1 || st.FailedBatches != 1 {
		t.Errorf("%d batches, %d failed", st.Batches, st.FailedBatches)
	}
}

// The text of the script is sent once for each connection, and again for hits that need their order.
func TestScriptTextIsSentOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr})
	for _, step := range []struct {
		name, first, second string // a key for a script, second one for a command.
		flush               bool
		want                string // the calls of EVAL and EVALSHA.
	}{
		{"at first", "a_", "b_", false, "1 0"},
		{"the server has it", "a_", "b_", false, "1 1"},
		{"the same key", "a_", "a_", false, "2 1"},
		{"the server has lost it", "a_", "b_", true, "3 2"},
		{"the server has it again", "a_", "b_", false, "3 3"},
	} {
		if step.flush {
			server.Do(t, "SCRIPT", "FLUSH")
		}
		b := backend.Batch{Verdicts: make([]backend.Verdict, 2), Hits: []backend.Hit{
			{Key: []byte(step.first), Limit: window(100, time.Hour), Amount: 1, Op: algorithm.Refund},
			{Key: []byte(step.second), Limit: window(100, time.Hour), Amount: 1, GroupID: 1},
		}}
		if err := s.Take(t.Context(), &b); err != nil || b.FirstErr() != nil {
			t.Fatal(err, b.FirstErr())
		}
		stats, calls := fmt.Sprint(server.Do(t, "INFO", "commandstats")), [2]string{"0", "0"}
		for i, name := range []string{"eval", "evalsha"} {
			if _, rest, ok := strings.Cut(stats, "cmdstat_"+name+":calls="); ok {
				calls[i], _, _ = strings.Cut(rest, ",")
			}
		}
		if got := strings.Join(calls[:], " "); got != step.want {
			t.Errorf("%s: EVAL and EVALSHA: %s calls, want %s", step.name, got, step.want)
		}
	}
}
