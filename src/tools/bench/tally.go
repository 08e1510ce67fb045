package bench

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
)

// tally counts what came of calls. It is safe for concurrent use.
type tally struct {
	mu       sync.Mutex              // guards what follows
	took     *hdrhistogram.Histogram // µs, of every call
	answers  [3]uint64               // by overall code
	failures [int(codes.Unauthenticated) + 1]uint64
	first    error         // of the first call that failed
	late     uint64        // calls that started more than lateAfter late
	behind   time.Duration // the latest start
}

// lateAfter is the delay from which a start is called late: above what timers
// and schedulers take of their own.
const lateAfter = time.Millisecond

// longest is the longest time that is told from longer ones.
const longest = time.Hour

func newTally() *tally {
	return &tally{took: hdrhistogram.New(1, longest.Microseconds(), 3)}
}

func (t *tally) add(out outcome, took, late time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.took.RecordValue(min(took, longest).Microseconds()) // fails above longest only
	switch {
	case out.failed == codes.OK:
		code := out.answer
		if code < 0 || int(code) >= len(t.answers) {
			code = pb.RateLimitResponse_UNKNOWN
		}
		t.answers[code]++
	default:
		code := out.failed
		if int(code) >= len(t.failures) {
			code = codes.Unknown
		}
		t.failures[code]++
		if t.first == nil {
			t.first = out.err
		}
	}
	if late > lateAfter {
		t.late++
	}
	t.behind = max(t.behind, late)
}

// counts returns how many calls ended, and how many of them failed.
func (t *tally) counts() (requests, errs uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.failures {
		errs += n
	}
	return t.answered() + errs, errs
}

// answered is for who holds mu, or is alone.
func (t *tally) answered() (n uint64) {
	for _, a := range t.answers {
		n += a
	}
	return n
}

// merge adds what other has counted. Both are at rest.
func (t *tally) merge(other *tally) {
	t.took.Merge(other.took)
	for i, n := range other.answers {
		t.answers[i] += n
	}
	for i, n := range other.failures {
		t.failures[i] += n
	}
	if t.first == nil {
		t.first = other.first
	}
	t.late += other.late
	t.behind = max(t.behind, other.behind)
}
