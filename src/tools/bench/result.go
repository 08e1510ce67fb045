package bench

import (
	"cmp"
	_ "embed"
	"errors"
	"io"
	"math"
	"os"
	"sync"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Result is the outcome of a run. Its JSON form is stable: later versions only add fields.
type Result struct {
	Address     string  `json:"address"`
	Workload    string  `json:"workload"` // a name of Workloads, or of the file of requests
	Keys        int     `json:"keys"`     // Config.Keys, but 1 for workloads with one value, and 0 for a file
	Seed        uint64  `json:"seed"`
	Connections int     `json:"connections"`
	InFlight    int     `json:"in_flight"`   // per connection
	Interrupted bool    `json:"interrupted"` // The context ended the run.
	Requests    uint64  `json:"requests"`    // the number of calls
	Seconds     float64 `json:"seconds"`     // from the start of the first call to the end of the last
	Rate        float64 `json:"rate"`        // answers per second
	// Latency includes calls that failed.
	Latency Latency `json:"latency_us"`
	// Answers are counted by overall code: OK, OVER_LIMIT, and UNKNOWN for all others.
	Answers map[string]uint64 `json:"answers"`
	// Errors are counted by the name of their gRPC code.
	Errors     map[string]uint64 `json:"errors"`
	FirstError string            `json:"first_error,omitempty"`
	// IsUnlimited says that answers came from grpc-go's client and none named a limit: no rule applies to the requests, or
	// the rule is unlimited. It is false for the workload nomatch.
	IsUnlimited bool      `json:"unlimited,omitempty"`
	OpenLoop    *OpenLoop `json:"open_loop,omitempty"` // nil for a closed loop
	// CPU is the CPU time by the name of the process. Generator is that of this process; nil where it is unknown.
	CPU       map[string]CPU `json:"cpu"`
	Generator *CPU           `json:"generator,omitempty"`
}

// Latency is in microseconds, with an error of at most 0.1 %. In an open loop it counts from when a call was due.
type Latency struct {
	Mean float64 `json:"mean"`
	P50  int64   `json:"p50"`
	P90  int64   `json:"p90"`
	P99  int64   `json:"p99"`
	P999 int64   `json:"p999"`
	Max  int64   `json:"max"`
}

// OpenLoop tells how well the generator kept its rate.
type OpenLoop struct {
	Rate   float64 `json:"rate"`      // the number of calls due per second
	Late   uint64  `json:"late"`      // the number of calls that started more than 1 ms late
	Behind int64   `json:"behind_us"` // the largest delay of a start, in microseconds
	Unsent uint64  `json:"unsent"`    // the number of calls that were due and never made; Latency does not include them
}

// CPU is the CPU time of a process in the measured interval.
type CPU struct {
	PID        int     `json:"pid"`
	Seconds    float64 `json:"seconds"`
	PerRequest float64 `json:"us_per_request"`
}

func newResult(cfg *Config, l *Load, t *Tally, took time.Duration) *Result {
	r := &Result{
		Address: cfg.Addr, Workload: l.name, Keys: l.keys, Seed: cfg.Seed, Connections: cfg.Connections,
		InFlight:    cfg.InFlight,
		IsUnlimited: l.name != noMatchWorkload && l.limits.isOpen.Load() && !l.limits.isLimited.Load(),
		Seconds:     rounded(took.Seconds(), 6),
		Latency: Latency{
			Mean: rounded(t.latency.Mean(), 2),
			P50:  t.latency.ValueAtQuantile(50),
			P90:  t.latency.ValueAtQuantile(90),
			P99:  t.latency.ValueAtQuantile(99),
			P999: t.latency.ValueAtQuantile(99.9),
			Max:  t.latency.Max(),
		},
		Answers: make(map[string]uint64),
		Errors:  make(map[string]uint64),
		CPU:     make(map[string]CPU),
	}
	for _, name := range pb.RateLimitResponse_Code_name {
		r.Answers[name] = 0
	}
	for c, n := range t.answers {
		name, known := pb.RateLimitResponse_Code_name[int32(c)]
		if !known {
			name = pb.RateLimitResponse_UNKNOWN.String()
		}
		r.Answers[name] += n
	}
	for c, n := range t.failures {
		if c > codes.Unauthenticated { // Codes above Unauthenticated have no name.
			c = codes.Unknown
		}
		r.Errors[codeName(c)] += n
	}
	if cfg.Rate > 0 {
		r.OpenLoop = &OpenLoop{Rate: cfg.Rate, Late: t.late, Behind: t.maxLateness.Microseconds()}
	}
	r.Requests, _ = t.counts()
	if took > 0 {
		r.Rate = rounded(float64(t.answered())/took.Seconds(), 2)
	}
	if t.firstError != nil {
		s := status.Convert(t.firstError)
		r.FirstError = codeName(s.Code()) + ": " + s.Message()
	}
	return r
}

// codeName returns the name of a code as gRPC's documents write it, such as NOT_FOUND.
func codeName(c codes.Code) string { return code.Code(c).String() }

// setCPU sets the CPU times from the results of cpuTimes before and after the run.
func (r *Result) setCPU(processes []Process, before, after []time.Duration) {
	spent := func(i int) (c CPU, ok bool) {
		if i >= len(after) || before[i] < 0 || after[i] < 0 || r.Requests == 0 {
			return c, false
		}
		seconds := (after[i] - before[i]).Seconds()
		return CPU{Seconds: rounded(seconds, 6), PerRequest: rounded(seconds*1e6/float64(r.Requests), 3)}, true
	}
	for i, p := range processes {
		if c, ok := spent(i); ok {
			c.PID = p.PID
			r.CPU[p.Name] = c
		}
	}
	if c, ok := spent(len(processes)); ok {
		c.PID = os.Getpid()
		r.Generator = &c
	}
}

//go:embed result.tmpl
var resultTemplateText string

var resultTemplate = template.Must(template.New("result").Parse(resultTemplateText))

// Write writes r as text. Tabs in the template separate the columns of its tables.
func (r *Result) Write(w io.Writer) error {
	columns := tabwriter.NewWriter(w, 10, 0, 2, ' ', tabwriter.AlignRight)
	return errors.Join(resultTemplate.Execute(columns, r), columns.Flush())
}

func rounded(x float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(x*scale) / scale
}

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
