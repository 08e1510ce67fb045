package push

import (
	"fmt"
	"testing"
	"time"

	"ratelimit/src/metrics"
)

// Names of timings are kept until the next flush, and no longer.
func TestMogrifiedNamesAreForgotten(t *testing.T) {
	s, err := New(Config{
		ReadStats: func() []metrics.Stat { return nil }, Addr: "x:1", Format: DogStatsD,
		Mogrifiers: []Mogrifier{mogrifier(t, "^(.)", "$1", nil)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for flush := range 5 {
		for i := range 1000 {
			s.AddTimings("always", 1, time.Second)
			s.AddTimings(fmt.Sprint(flush, i), 1, time.Second)
		}
		if kept := len(s.timingSpellings); kept != 1001 || s.timingSpellings["always"].name != "a" {
			t.Fatalf("flush %d: %d names kept, %q", flush, kept, s.timingSpellings["always"].name)
		}
		s.flushStats(t.Context())
	}
	if len(s.timingSpellings) > 0 {
		t.Errorf("%d names kept", len(s.timingSpellings))
	}
}
