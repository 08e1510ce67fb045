// Package recording records live requests and their answers, in the form that `ratelimit simulate` reads.
//
// A request is recorded on the goroutine that decided it, into memory with a bound. Stream takes the lines from there
// and writes them. If it does not keep up, lines are lost, and it writes how many.
package recording

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/backend/siphash"
	"ratelimit/src/limiter"
)

// Bounds on all recordings of a process.
const (
	// MaxRecordings is how many recordings there may be at a time.
	MaxRecordings = 4
	// MaxLinesPerSecond is how many requests one recording takes in a second. Writing one down takes about a microsecond.
	MaxLinesPerSecond = 20_000
	// maxWaitingBytes bounds the text that waits for Stream, and maxRequestBytes the keys and values of a request that is
	// recorded. One byte can take six in JSON.
	maxWaitingBytes = 2 << 20
	maxRequestBytes = 64 << 10
	// interval is the time between two writes. Lines wait for so long that those of requests decided before them can
	// overtake them.
	interval = 100 * time.Millisecond
)

// ErrTooMany is the error of Stream while there are MaxRecordings others.
var ErrTooMany = errors.New("too many recordings run at a time")

// Config says which requests a recording has.
type Config struct {
	// Percent is how much is recorded: of all requests, or of all values of ByKey. It is above 0, and at most 100.
	Percent float64
	// ByKey, if set, records all requests that have an entry with this key and a chosen value. A hash chooses the values,
	// the same ones in each recording and on each replica. By default each request is chosen by itself, at random.
	ByKey string
	// Domain, if set, records only requests to this domain.
	Domain string
}

// Recorder is a limiter.Recorder that records requests while there are recordings. Otherwise it does nothing.
type Recorder struct {
	appendRequest func(dst []byte, req *limiter.Request) []byte // appends a request as JSON
	active        atomic.Pointer[[]*recording]                  // never nil.
	mu            sync.Mutex                                    // held while active is replaced.
}

// New returns a Recorder. appendRequest appends a request as JSON.
func New(appendRequest func(dst []byte, req *limiter.Request) []byte) *Recorder {
	r := &Recorder{appendRequest: appendRequest}
	r.active.Store(new([]*recording))
	return r
}

// recording is one recording.
type recording struct {
	cfg       Config
	threshold uint64 // Percent of 2^64. Requests and values are chosen whose random number or hash is smaller.

	mu            sync.Mutex // guards the fields below.
	text          []byte     // the lines, each from its request on.
	lines         []line
	lost          uint64 // counts chosen requests that were not recorded, since the last take.
	second        int64  // the second in which linesInSecond were recorded.
	linesInSecond int
}

// line is a recorded request.
type line struct {
	at   int64  // when it was decided, in nanoseconds since the Unix epoch.
	text []byte // the line without its beginning, {"at":"...".
}

// Record implements limiter.Recorder.
func (r *Recorder) Record(req *limiter.Request, a *limiter.Answer) {
	if list := *r.active.Load(); len(list) > 0 && req.CallerLimit == nil { // Recordings have no limits of callers.
		r.record(list, req, a)
	}
}

func (r *Recorder) record(list []*recording, req *limiter.Request, a *limiter.Answer) {
	at := a.DecidedAt
	if at == 0 {
		at = time.Now().UnixNano()
	}
	for _, rec := range list {
		if rec.cfg.Domain != "" && rec.cfg.Domain != string(req.Domain) {
			continue
		}
		if rec.chooses(req.Descriptors) {
			rec.add(r, at, req, answerOf(a.Statuses, a.Over))
		}
	}
}

// answerOf returns the end of a line with the answer, as `ratelimit simulate` reads it.
func answerOf(statuses []limiter.Status, over bool) string {
	for i := range statuses {
		if statuses[i].IsUndecided() {
			return `,"answer":"ERROR"}` + "\n"
		}
	}
	if over {
		return `,"answer":"OVER_LIMIT"}` + "\n"
	}
	return `,"answer":"OK"}` + "\n"
}

// valueKey is the key of the hash that chooses values of Config.ByKey. It is a constant, so that recordings of replicas
// fit together.
var valueKey = siphash.Key{0x7265636f7264206f, 0x7665722076616c75}

// chooses reports whether a request with these descriptors is recorded.
func (rec *recording) chooses(descriptors []limiter.Descriptor) bool {
	if rec.cfg.ByKey == "" {
		return rec.threshold == math.MaxUint64 || rand.Uint64() < rec.threshold
	}
	for i := range descriptors {
		for j := range descriptors[i].Entries {
			if e := &descriptors[i].Entries[j]; string(e.Key) == rec.cfg.ByKey {
				if low, _ := valueKey.Sum128(0, e.Value); low <= rec.threshold {
					return true
				}
			}
		}
	}
	return false
}

// add records a request, unless that would exceed a bound.
func (rec *recording) add(r *Recorder, at int64, req *limiter.Request, end string) {
	size := len(req.Domain)
	for i := range req.Descriptors {
		for _, e := range req.Descriptors[i].Entries {
			size += len(e.Key) + len(e.Value)
		}
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if second := at / int64(time.Second); second != rec.second {
		rec.second, rec.linesInSecond = second, 0
	}
	rec.linesInSecond++
	if size > maxRequestBytes || len(rec.text) > maxWaitingBytes || rec.linesInSecond > MaxLinesPerSecond {
		rec.lost++
		return
	}
	start := len(rec.text)
	rec.text = append(r.appendRequest(append(rec.text, `,"request":`...), req), end...)
	rec.lines = append(rec.lines, line{at, rec.text[start:len(rec.text):len(rec.text)]})
}

// take returns the lines since the last take, and how many were lost.
func (rec *recording) take() (lines []line, lost uint64) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	lines, lost = rec.lines, rec.lost
	rec.text, rec.lines, rec.lost = nil, nil, 0 // The lines refer to the text.
	return lines, lost
}

// Stream records requests until ctx ends, and calls write at once and about every tenth of a second, with whole lines
// of JSON or with nothing:
//
//	{"at":"2026-11-27T08:00:00.123456789Z","request":{...},"answer":"OK"}
//	{"at":"2026-11-27T08:00:00.123456789Z","lost":12}
//
// The lines are ordered by time. The second form says how many chosen requests are missing before it. Stream returns
// the error of write, ErrTooMany, or nil after ctx has ended.
func (r *Recorder) Stream(ctx context.Context, cfg Config, write func(lines []byte) error) error {
	rec := &recording{cfg: cfg, threshold: math.MaxUint64}
	if cfg.Percent < 100 {
		rec.threshold = uint64(math.Ldexp(cfg.Percent/100, 64))
	}
	if !r.start(rec) {
		return ErrTooMany
	}
	defer r.stop(rec)
	if err := write(nil); err != nil {
		return err
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var out writer
	for {
		select {
		case <-ctx.Done():
			r.stop(rec)
			out.collect(rec)
			return out.flush(math.MaxInt64, write)
		case now := <-ticker.C:
			out.collect(rec)
			if err := out.flush(now.Add(-interval).UnixNano(), write); err != nil {
				return err
			}
		}
	}
}

// start adds rec to the active recordings. It reports false if there are too many.
func (r *Recorder) start(rec *recording) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	active := *r.active.Load()
	if len(active) == MaxRecordings {
		return false
	}
	active = append(slices.Clone(active), rec)
	r.active.Store(&active)
	return true
}

// stop removes rec from the active recordings, if it is there.
func (r *Recorder) stop(rec *recording) {
	r.mu.Lock()
	defer r.mu.Unlock()
	active := slices.DeleteFunc(slices.Clone(*r.active.Load()), func(other *recording) bool { return other == rec })
	r.active.Store(&active)
}

// writer puts the lines of a recording in order.
type writer struct {
	waiting []line // the lines that are not written yet.
	lost    uint64
	last    int64 // the time of the line that was written last.
	buffer  []byte
}

func (w *writer) collect(rec *recording) {
	lines, lost := rec.take()
	w.waiting, w.lost = append(w.waiting, lines...), w.lost+lost
	slices.SortStableFunc(w.waiting, func(a, b line) int { return cmp.Compare(a.at, b.at) })
}

// flush writes the lines up to a time, and behind them how many were lost.
func (w *writer) flush(until int64, write func([]byte) error) error {
	w.buffer = w.buffer[:0]
	n := 0
	for ; n < len(w.waiting) && w.waiting[n].at <= until; n++ {
		w.appendStart(w.waiting[n].at)
		w.buffer = append(w.buffer, w.waiting[n].text...)
	}
	rest := copy(w.waiting, w.waiting[n:])
	clear(w.waiting[rest:]) // The texts can be freed.
	w.waiting = w.waiting[:rest]
	if w.lost > 0 {
		w.appendStart(min(until, time.Now().UnixNano()))
		w.buffer = append(strconv.AppendUint(append(w.buffer, `,"lost":`...), w.lost, 10), "}\n"...)
		w.lost = 0
	}
	return write(w.buffer)
}

// timeLayout is RFC 3339 with all nine digits, so that lines sorted as text are in the order of their times.
const timeLayout = "2006-01-02T15:04:05.000000000Z"

// appendStart appends {"at":"...", the beginning of a line. If a line with a later time has been written, it has that
// time.
func (w *writer) appendStart(at int64) {
	w.last = max(w.last, at)
	w.buffer = time.Unix(0, w.last).UTC().AppendFormat(append(w.buffer, `{"at":"`...), timeLayout)
	w.buffer = append(w.buffer, '"')
}
