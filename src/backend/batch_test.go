package backend

import (
	"testing"
	"time"

	"ratelimit/src/algorithm"
)

func TestBatchCheck(t *testing.T) {
	limit := &algorithm.Limit{Max: 1, Period: time.Second}
	good := Hit{Limit: limit, Amount: 1}
	at := func(s string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	tests := []struct {
		name     string
		hits     []Hit
		verdicts int
		ahead    time.Duration
		now      time.Time
		want     string // empty: it is fine
	}{
		{name: "empty"},
		{name: "good", hits: []Hit{good, good}, verdicts: 2},
		{
			name: "the largest amount", hits: []Hit{{Limit: limit, Amount: algorithm.MaxAmount, Op: algorithm.Force}},
			verdicts: 1,
		},
		{name: "tags", hits: []Hit{
			{Key: []byte("abc"), TagLength: 1, Limit: limit},
			{Key: []byte("abc"), TagLength: 3, Limit: limit},
		}, verdicts: 2},
		{name: "first instant", hits: []Hit{good}, verdicts: 1, now: at("1970-01-01T00:00:00Z")},
		{name: "last instant", hits: []Hit{good}, verdicts: 1, now: at("2150-01-01T00:00:00Z")},
		{
			name: "too few verdicts", hits: []Hit{good, good}, verdicts: 1,
			want: "backend: 1 verdicts for 2 hits",
		},
		{
			name: "too many verdicts", verdicts: 1,
			want: "backend: 1 verdicts for 0 hits",
		},
		{
			name: "too early", hits: []Hit{good}, verdicts: 1, now: at("1969-12-31T23:59:59.999999999Z"),
			want: "backend: the instant 1969-12-31 23:59:59.999999999 +0000 UTC is not between the years 1970 and 2150",
		},
		{
			name: "too late", hits: []Hit{good}, verdicts: 1, now: at("2150-01-01T00:00:00.000000001Z"),
			want: "backend: the instant 2150-01-01 00:00:00.000000001 +0000 UTC is not between the years 1970 and 2150",
		},
		{
			name: "no limit", hits: []Hit{good, {}}, verdicts: 2,
			want: "backend: a hit without a limit",
		},
		{
			name: "a refund of a window", verdicts: 1,
			hits: []Hit{{Limit: limit, Op: algorithm.Refund, Window: 5}},
		},
		{
			name: "a charge of a window", hits: []Hit{{Limit: limit, Window: 5}}, verdicts: 1,
			want: "backend: a charge on a fixed_window names the window up to 5",
		},
		{
			name: "a refund of a window where there are none", verdicts: 1,
			hits: []Hit{{
				Limit: &algorithm.Limit{Kind: algorithm.GCRA, Max: 1, Period: time.Second},
				Op:    algorithm.Refund, Window: 5,
			}},
			want: "backend: a refund on a gcra names the window up to 5",
		},
		{
			name: "no period", hits: []Hit{{Limit: &algorithm.Limit{Max: 1}}}, verdicts: 1,
			want: "backend: a limit without a period",
		},
		{
			name: "ahead of the store's clock", hits: []Hit{{Limit: &algorithm.Limit{
				Kind: algorithm.GCRA, Max: 1,
				Period: time.Second,
			}}}, verdicts: 1, ahead: time.Second,
			want: "backend: a gcra is asked 1s ahead",
		},
		{
			name: "a tag below nothing", hits: []Hit{{Key: []byte("abc"), TagLength: -1, Limit: limit}}, verdicts: 1,
			want: "backend: a tag of -1 bytes for a key of 3",
		},
		{
			name: "a tag beyond the key", hits: []Hit{{Key: []byte("abc"), TagLength: 4, Limit: limit}}, verdicts: 1,
			want: "backend: a tag of 4 bytes for a key of 3",
		},
		{
			name: "too much", hits: []Hit{{Limit: limit, Amount: algorithm.MaxAmount + 1}}, verdicts: 1,
			want: "backend: an amount of 281474976710657 is above 2^48",
		},
		{
			name: "unknown operation", hits: []Hit{{Limit: limit, Op: 99}}, verdicts: 1,
			want: "backend: op 99 is not known",
		},
		{
			name: "unknown arithmetic", hits: []Hit{{Limit: &algorithm.Limit{
				Kind:   200,
				Period: time.Second,
			}}}, verdicts: 1,
			want: "backend: kind 200 is not known",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := Batch{Hits: test.hits, Verdicts: make([]Verdict, test.verdicts), Now: test.now, Ahead: test.ahead}
			if got := words(b.Validate()); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func words(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestGroupEnd(t *testing.T) {
	var b Batch
	for _, group := range []uint16{7, 7, 0, 1, 1, 1, 7} {
		b.Hits = append(b.Hits, Hit{GroupID: group})
	}
	for i, want := range []int{2, 2, 3, 6, 6, 6, 7} { // the last group is another one of the same number
		if got := b.GroupEnd(i); got != want {
			t.Errorf("the group of hit %d ends at %d, want %d", i, got, want)
		}
	}
}

func TestAsLook(t *testing.T) {
	limit := &algorithm.Limit{Max: 1, Period: time.Second}
	for op, amount := range map[algorithm.Op]uint64{
		algorithm.Charge: 5, algorithm.Look: 5, algorithm.Refund: 0,
		algorithm.Force: 0,
	} {
		got := Hit{Limit: limit, Amount: 5, Op: op, Atomic: true, NoVeto: true, Window: 7}.AsLook()
		if got.Op != algorithm.Look || got.Amount != amount || got.Atomic || !got.NoVeto || got.Limit != limit ||
			got.Window != 0 {
			t.Errorf("%v: %+v, want a look at %d", op, got, amount)
		}
	}
}

func TestAnyAtomic(t *testing.T) {
	if AnyAtomic(nil) || AnyAtomic([]Hit{{}, {}}) || !AnyAtomic([]Hit{{}, {Atomic: true}}) {
		t.Error("a group stands or falls together if one of its hits is atomic")
	}
}
