package simulate

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

func TestReasons(t *testing.T) {
	for _, tt := range []struct {
		v      backend.Verdict
		amount uint64
		want   string
	}{
		{backend.Verdict{Outcome: algorithm.Outcome{Before: 9}}, 1, `[]`},
		{backend.Verdict{Outcome: algorithm.Outcome{Before: 20}}, 0, `[]`}, // a refund is never over
		{backend.Verdict{Outcome: algorithm.Outcome{Over: true, Before: 10}}, 1, `["count"]`},
		{backend.Verdict{Outcome: algorithm.Outcome{Over: true, Before: 5}}, 1, `["count"]`}, // because of others of its group
		{backend.Verdict{Outcome: algorithm.Outcome{Over: true, Interval: true, Before: 9}}, 1, `["interval"]`},
		{backend.Verdict{Outcome: algorithm.Outcome{Over: true, Interval: true, Before: 9}}, 2, `["count","interval"]`},
		{backend.Verdict{Outcome: algorithm.Outcome{Over: true, Interval: true, Before: algorithm.MaxCount}}, algorithm.MaxAmount, `["count","interval"]`},
	} {
		if got := reasons(&tt.v, tt.amount, 10); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt, got, tt.want)
		}
	}
}

func TestMicrosecondsAreRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", 1: "1", 999: "1", 1000: "1", 1001: "2", time.Second: "1000000", algorithm.MaxPeriod: "3153600000000000",
	} {
		if got := string(appendMicroseconds(nil, d)); got != want {
			t.Errorf("%d ns: %s, want %s", d, got, want)
		}
	}
}

func TestAppendString(t *testing.T) {
	for _, text := range []string{"", "plain", "a\"b\\c", "line\nline", "\x00\x1f\x7f", "<&>'", "ümlaut 漢字 😀 \u2028"} {
		var back string
		got := string(appendString(nil, text))
		if err := json.Unmarshal([]byte(got), &back); err != nil || back != text {
			t.Errorf("%q: %s, %v", text, got, err)
		}
		if got != string(appendString(nil, []byte(text))) || strings.ContainsAny(got, "\n\x00\x7f") {
			t.Errorf("%q: %s", text, got)
		}
	}
	if got := string(appendString(nil, "a\xffb\xe2\x82")); got != "\"a\uFFFDb\uFFFD\uFFFD\"" {
		t.Errorf("not UTF-8: %+q", got)
	}
}
