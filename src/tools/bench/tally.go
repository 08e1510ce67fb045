package bench

import (
	"cmp"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Tally counts calls and their outcomes. It is safe for concurrent use.
type Tally struct {
	mu          sync.Mutex // guards all other fields.
	latency     *hdrhistogram.Histogram
	answers     map[pb.RateLimitResponse_Code]uint64
	failures    map[codes.Code]uint64
	firstError  error
	late        uint64        // counts calls that started more than lateThreshold after they were due.
	maxLateness time.Duration // the largest delay of the start of a call.
}

// lateThreshold is longer than timers and schedulers are usually late.
const lateThreshold = time.Millisecond

// maxLatency is recorded for calls that take longer. The histogram counts in microseconds.
const maxLatency = time.Hour

func newTally() *Tally {
	return &Tally{
		latency:  hdrhistogram.New(1, maxLatency.Microseconds(), 3),
		answers:  make(map[pb.RateLimitResponse_Code]uint64),
		failures: make(map[codes.Code]uint64),
	}
}

// Add counts a call that ended with an answer or err.
func (t *Tally) Add(answer pb.RateLimitResponse_Code, err error, latency, lateness time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.latency.RecordValue(min(latency, maxLatency).Microseconds()) // RecordValue fails only above maxLatency.
	if err == nil {
		t.answers[answer]++
	} else {
		t.failures[status.Code(err)]++
		t.firstError = cmp.Or(t.firstError, err)
	}
	if lateness > lateThreshold {
		t.late++
	}
	t.maxLateness = max(t.maxLateness, lateness)
}

// counts returns the number of calls that ended, and of those that failed.
func (t *Tally) counts() (ended, failed uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	failed = sum(t.failures)
	return t.answered() + failed, failed
}

// answered returns the number of calls that were answered. The caller holds mu, or no other goroutine uses t.
func (t *Tally) answered() uint64 { return sum(t.answers) }

func sum[K comparable](counts map[K]uint64) (total uint64) {
	for _, n := range counts {
		total += n
	}
	return total
}

// merge adds the counts of other. No other goroutine may use either.
func (t *Tally) merge(other *Tally) {
	t.latency.Merge(other.latency)
	for code, n := range other.answers {
		t.answers[code] += n
	}
	for code, n := range other.failures {
		t.failures[code] += n
	}
	t.firstError = cmp.Or(t.firstError, other.firstError)
	t.late += other.late
	t.maxLateness = max(t.maxLateness, other.maxLateness)
}
