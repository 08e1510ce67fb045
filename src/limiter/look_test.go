package limiter_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

// A look says what a check would, for the amount that is asked, and leaves
// everything as it was.
func TestLook(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  limiter.Config
		ask  []string // request, what a look says, what a check then says
	}{
		{"until it is over", limiter.Config{}, []string{
			"ip=1", "ok: ok 2/2", "ok: ok 1/2",
			"ip=1", "ok: ok 1/2", "ok: ok 0/2",
			"ip=1", "over: over 0/2", "over: over 0/2",
		}},
		{"whether the amount passes", limiter.Config{}, []string{
			"ip=1:3", "over: over 0/2", "over: over 0/2",
			"ip=2:2", "ok: ok 2/2", "ok: ok 0/2",
			"ip=2:0", "ok: ok 0/2", "ok: ok 0/2",
		}},
		{"refunds", limiter.Config{}, []string{
			"ip=1:5", "over: over 0/2", "over: over 0/2",
			"ip=1-", "ok: ok 0/2", "ok: ok 0/2",
			"ip=1:9-", "ok: ok 0/2", "ok: ok 2/2",
		}},
		{"one counter, several descriptors", limiter.Config{}, []string{
			"ip=1 ip=1 ip=1", "over: ok 2/2, ok 2/2, over 0/2", "over: ok 1/2, ok 0/2, over 0/2",
		}},
		{"modes", limiter.Config{}, []string{
			"trial=a:2 staff=a nobody=a", "ok: ok 0/1, unlimited, -", "ok: ok 0/1, unlimited, -",
			"gold=a:2 silver=a", "ok: over 0/1, ok 2/2", "ok: over 0/1, ok 1/2",
			"ip=1 premium=x", "ok: -, ok 9/9", "ok: -, ok 8/9",
		}},
		{"all or nothing", limiter.Config{ChargeAllOrNothing: true}, []string{
			"ip=1 path=/pay,user=x", "ok: ok 2/2, ok 1/1", "ok: ok 1/2, ok 0/1",
			"ip=1 path=/pay,user=x", "over: ok 1/2, over 0/1", "over: ok 1/2, over 0/1",
		}},
		{"shadow mode for all", limiter.Config{ShadowMode: true}, []string{
			"ip=10.0.0.7", "ok: over 0/0", "ok: over 0/0",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := start(t, tt.cfg)
			var a limiter.Answer
			for i := 0; i < len(tt.ask); i += 3 {
				for range 3 {
					if err := l.DryRun(t.Context(), parse(tt.ask[i]), &a); err != nil {
						t.Fatal(err)
					}
					if got := brief(&a); got != tt.ask[i+1] {
						t.Errorf("look %d, %s:\n got %s\nwant %s", i/3+1, tt.ask[i], got, tt.ask[i+1])
					}
				}
				if err := l.Check(t.Context(), parse(tt.ask[i]), &a); err != nil {
					t.Fatal(err)
				}
				if got := brief(&a); got != tt.ask[i+2] {
					t.Errorf("request %d, %s:\n got %s\nwant %s", i/3+1, tt.ask[i], got, tt.ask[i+2])
				}
			}
		})
	}
}

// Only looks reach the store, and the Recorder is not called.
func TestLookOnlyLooks(t *testing.T) {
	s, counted := watch(t), &recorder{}
	l := start(t, limiter.Config{Backend: s, Recorders: []limiter.Recorder{counted}, ChargeAllOrNothing: true})
	var a limiter.Answer
	if err := l.DryRun(t.Context(), parse("ip=1:5 ip=1:2 trial=x ip=2- gold=1"), &a); err != nil {
		t.Fatal(err)
	}
	var amounts []uint64
	for _, h := range s.batches[0] {
		if h.Op != algorithm.Look || h.Atomic {
			t.Errorf("%s: %v, atomic %t", h.Key, h.Op, h.Atomic)
		}
		amounts = append(amounts, h.Amount)
	}
	if want := []uint64{5, 7, 1, 0, 1}; !reflect.DeepEqual(amounts, want) {
		t.Errorf("asked for %d, want %d", amounts, want)
	}
	if counted.n != 0 {
		t.Error("a look was counted")
	}
	for i, want := range []uint64{5, 2, 1, 1, 1} { // what would be charged
		if st := &a.Statuses[i]; st.Amount != want || (st.Op == algorithm.Refund) != (i == 3) {
			t.Errorf("descriptor %d: %v of %d, want %d", i, st.Op, st.Amount, want)
		}
	}
}

// Two hits of a request on a counter with a smallest distance never pass both.
func TestLookTooClose(t *testing.T) {
	s := watch(t)
	l := start(t, limiter.Config{Backend: s})
	l.UseRules(load(t, `
domain: d
descriptors:
  - {key: ip, rate_limit: {algorithm: gcra, unit: minute, requests_per_unit: 9, min_interval: 1s}}
`))
	var a limiter.Answer
	if err := l.DryRun(t.Context(), parse("ip=1 ip=2 ip=1"), &a); err != nil {
		t.Fatal(err)
	}
	if got := brief(&a); !strings.HasPrefix(got, "over: ok ") || !strings.HasSuffix(got, ", over 9/9") {
		t.Errorf("got %s", got)
	}
	if v := a.Statuses[2].Charges[0].Verdict; !v.WithinMinInterval || v.RetryAfter != algorithm.Never {
		t.Errorf("got %+v", v)
	}
}

func TestLookErrors(t *testing.T) {
	s := watch(t)
	s.err = errors.New("connection refused")
	counted := &recorder{}
	l := start(t, limiter.Config{Backend: s, Recorders: []limiter.Recorder{counted}})
	if err := l.DryRun(t.Context(), parse("ip=1"), new(limiter.Answer)); !errors.Is(err, limiter.ErrStoreFailed) ||
		!errors.Is(err, s.err) {
		t.Errorf("got %v", err)
	}
	if counted.n != 0 {
		t.Error("a look was counted")
	}
	bad := parse("ip=1")
	bad.Descriptors[0].HasLimit = true
	for _, tt := range []struct {
		l    *limiter.Limiter
		req  *limiter.Request
		want error
	}{
		{l, &limiter.Request{Domain: []byte("d")}, limiter.ErrInvalidRequest},
		{l, &limiter.Request{Descriptors: bad.Descriptors}, limiter.ErrInvalidRequest},
		{l, bad, limiter.ErrInvalidRequest},
		{limiter.New(limiter.Config{}), parse("ip=1"), limiter.ErrNoRules},
	} {
		if err := tt.l.DryRun(t.Context(), tt.req, new(limiter.Answer)); !errors.Is(err, tt.want) {
			t.Errorf("%+v: got %v, want %v", tt.req, err, tt.want)
		}
	}
}

// RetryAfter is the longest wait of those that refuse, and of quotas the shortest.
func TestRetry(t *testing.T) {
	l := start(t, limiter.Config{})
	for _, tt := range []struct {
		charge, ask string
		wait        string // never: it cannot pass; none: it does
	}{
		{"ip=1", "ip=1", "none"},
		{"ip=1:2", "ip=1", "1m0s"},
		{"ip=2:2", "ip=2 path=/pay:11", "never"},
		{"path=/x,user=y", "ip=10.0.0.7", "never"},
		{"gold=1:1 path=/pay:10", "gold=1 path=/pay", "6h0m0s"},
		{"gold=1:1", "gold=1 silver=1:3", "1m0s"},
		{"nobody=1", "gold=2:2 silver=2:3", "never"},
	} {
		var a limiter.Answer
		if err := l.Check(t.Context(), parse(tt.charge), &a); err != nil {
			t.Fatal(err)
		}
		if err := l.DryRun(t.Context(), parse(tt.ask), &a); err != nil {
			t.Fatal(err)
		}
		got := a.RetryAfter.String()
		switch {
		case !a.Over && a.RetryAfter == 0:
			got = "none"
		case a.RetryAfter == algorithm.Never:
			got = "never"
		}
		if got != tt.wait {
			t.Errorf("%s after %s: %s, want %s", tt.ask, tt.charge, got, tt.wait)
		}
	}
}

// FuzzLook holds looks to the checks that follow them, by every algorithm: what
// passes, how the counter stands and how long to wait.
func FuzzLook(f *testing.F) {
	f.Add([]byte("\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff"))
	f.Add([]byte("abcabcabcaaaaaaaaaabbbbbbbbbbccccccccccddddddd"))
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	for i, limit := range []string{
		"unit: minute, requests_per_unit: 3",
		"unit: minute, requests_per_unit: 3, count_blocked: false",
		"algorithm: first_hit_window, unit: minute, requests_per_unit: 3",
		"algorithm: sliding_window, unit: minute, requests_per_unit: 3, min_interval: 1s",
		"algorithm: sliding_window, unit: minute, requests_per_unit: 3, count_blocked: true",
		"algorithm: sliding_window_counter, unit: minute, requests_per_unit: 3",
		"algorithm: gcra, unit: minute, requests_per_unit: 3, burst: 1",
		"algorithm: gcra, unit: minute, requests_per_unit: 3, count_blocked: true, min_interval: 2s",
	} {
		fmt.Fprintf(&text, "- {key: k%d, rate_limit: {%s}}\n", i, limit)
	}
	set := load(f, text.String())
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 200 {
			return
		}
		l := start(t, limiter.Config{})
		l.UseRules(set)
		now := epoch
		for _, b := range data {
			now = now.Add([]time.Duration{0, time.Second, 7 * time.Second, 50 * time.Second}[b>>6])
			first := fmt.Sprintf("k%d=x:%d", b&7, b>>3&3)
			req := parse(first + fmt.Sprintf(" k%d=x", (b+1)&7))
			if b>>5&1 > 0 {
				req = parse(first + "-")
			}
			req.Now = now
			var look, check limiter.Answer
			for range 2 {
				if err := l.DryRun(t.Context(), req, &look); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.Check(t.Context(), req, &check); err != nil {
				t.Fatal(err)
			}
			if look.Over != check.Over {
				t.Fatalf("%s at %v: a look says over %t, a check %t", first, now, look.Over, check.Over)
			}
			for i := range check.Charges {
				seen, made := look.Charges[i].Verdict, check.Charges[i].Verdict
				if seen.Over != made.Over || seen.Before != made.Before || seen.WithinMinInterval != made.WithinMinInterval {
					t.Fatalf("%s at %v, charge %d: a look says %+v, a check %+v", first, now, i, seen, made)
				}
				// What counts although it is refused makes the next one wait longer.
				if !check.Charges[i].Rule.Limit.CountBlocked && seen.RetryAfter != made.RetryAfter {
					t.Fatalf("%s at %v, charge %d: a look says wait %v, a check %v", first, now, i, seen.RetryAfter, made.RetryAfter)
				}
			}
		}
	})
}
