package bench

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// tally counts the outcomes of calls. It is safe for concurrent use.
type tally struct {
	mu       sync.Mutex              // guards what follows
	took     *hdrhistogram.Histogram // µs, of every call
	answers  map[pb.RateLimitResponse_Code]uint64
	failures map[codes.Code]uint64
	first    error         // of the first call that failed
	late     uint64        // calls that started more than lateAfter late
	behind   time.Duration // the latest start
}

// lateAfter is the delay above which a start counts as late. Timers and schedulers are faster.
const lateAfter = time.Millisecond

// longest is recorded for all calls that take longer.
const longest = time.Hour

func newTally() *tally {
	return &tally{
		took:     hdrhistogram.New(1, longest.Microseconds(), 3),
		answers:  make(map[pb.RateLimitResponse_Code]uint64),
		failures: make(map[codes.Code]uint64),
	}
}

func (t *tally) add(out outcome, took, late time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.took.RecordValue(min(took, longest).Microseconds()) // fails above longest only
	if out.err == nil {
		t.answers[out.answer]++
	} else {
		t.failures[status.Code(out.err)]++
		t.setFirst(out.err)
	}
	if late > lateAfter {
		t.late++
	}
	t.behind = max(t.behind, late)
}

func (t *tally) setFirst(err error) {
	if t.first == nil {
		t.first = err
	}
}

// counts returns how many calls ended, and how many of them failed.
func (t *tally) counts() (requests, errs uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	errs = sum(t.failures)
	return t.answered() + errs, errs
}

// answered returns how many calls were answered. The caller holds mu, or owns t.
func (t *tally) answered() uint64 { return sum(t.answers) }

func sum[K comparable](counts map[K]uint64) (total uint64) {
	for _, n := range counts {
		total += n
	}
	return total
}

// merge adds the counts of other. No call may be under way.
func (t *tally) merge(other *tally) {
	t.took.Merge(other.took)
	for i, n := range other.answers {
		t.answers[i] += n
	}
	for i, n := range other.failures {
		t.failures[i] += n
	}
	t.setFirst(other.first)
	t.late += other.late
	t.behind = max(t.behind, other.behind)
}
