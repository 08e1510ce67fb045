//go:build !race

package recording

import (
	"testing"
	"time"
)

// Without a recording, and for requests that none chooses, Record allocates nothing. The race detector allocates by
// itself.
func TestRecordDoesNotAllocate(t *testing.T) {
	r := newRecorder()
	req, a := parse("d user=alex,path=/pay"), answer(time.Now(), 0, false)
	if n := testing.AllocsPerRun(100, func() { r.Record(req, a) }); n > 0 {
		t.Errorf("%v allocations without a recording", n)
	}
	r.start(&recording{cfg: Config{Percent: 1}})
	r.start(&recording{cfg: Config{Percent: 1, ByKey: "user"}})
	if n := testing.AllocsPerRun(100, func() { r.Record(req, a) }); n > 0 {
		t.Errorf("%v allocations of a request that is not chosen", n)
	}
}
