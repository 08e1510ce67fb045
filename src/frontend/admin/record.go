package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/operator"
	"ratelimit/src/settings/units"
)

// RecordQuery says which requests a recording has, and when it ends.
type RecordQuery struct {
	Percent float64 // of all requests, or of all values of ByKey: above 0, at most 100.
	// ByKey, if set, is the key of an entry: all requests with a chosen value are recorded.
	ByKey    string
	Domain   string        // if set, the only domain that is recorded.
	For      time.Duration // how long the recording takes at most.
	MaxBytes int64
}

// Record calls write with whole lines of JSON until ctx ends or write returns an error. Its error is that of write, or
// a *operator.Refusal. client goes into the log.
type Record func(ctx context.Context, q RecordQuery, client operator.Client, write func(lines []byte) error) error

// Bounds on a recording, and the defaults of the query.
const (
	DefaultRecordTime  = time.Minute
	MaxRecordTime      = 24 * time.Hour
	DefaultRecordBytes = 64 << 20
	MaxRecordBytes     = 1 << 30
	maxRecordKeyBytes  = 256
	// recordWriteTimeout is how long a client may take to read what one write sends.
	recordWriteTimeout = 10 * time.Second
	// recordPause is the longest time without a write. Then an empty line is sent, so that a lost client is noticed.
	recordPause = 10 * time.Second
)

// The values of the trailer RecordEndTrailer, which says why a recording ended.
const (
	RecordEndTrailer  = "Record-End"
	RecordEndTime     = "time"
	RecordEndMaxBytes = "max_bytes"
)

// ParseSample returns the percentage of a text such as "10%", "0.5%" or "1/20".
func ParseSample(text string) (percent float64, err error) {
	bad := fmt.Errorf("sample %.40q: write a percentage such as 10%% or 0.5%%, or a fraction such as 1/20, above 0 and "+
		"at most 100%%", text)
	if number, isPercent := strings.CutSuffix(text, "%"); isPercent {
		percent, err = strconv.ParseFloat(number, 64)
	} else {
		above, below, _ := strings.Cut(text, "/")
		a, errA := strconv.ParseUint(above, 10, 32)
		b, errB := strconv.ParseUint(below, 10, 32)
		percent, err = float64(a)/float64(b)*100, errors.Join(errA, errB)
	}
	if err != nil || math.IsNaN(percent) || percent <= 0 || percent > 100 {
		return 0, bad
	}
	return percent, nil
}

func parseRecordQuery(query string) (q RecordQuery, err error) {
	q = RecordQuery{Percent: 100, For: DefaultRecordTime, MaxBytes: DefaultRecordBytes}
	values, err := url.ParseQuery(query)
	if err != nil {
		return q, fmt.Errorf("the query cannot be read: %w", err)
	}
	for name, list := range values {
		text := list[0]
		switch {
		case len(list) > 1:
			return q, fmt.Errorf("give %.100q once", name)
		case name == "sample":
			q.Percent, err = ParseSample(text)
		case name == "by" && text != "" && len(text) <= maxRecordKeyBytes:
			q.ByKey = text
		case name == "by":
			err = fmt.Errorf("by has %d bytes: write the key of an entry, with 1 to %d", len(text), maxRecordKeyBytes)
		case name == "domain":
			q.Domain = text
		case name == "for":
			if q.For, err = units.Duration(text); err != nil || q.For <= 0 || q.For > MaxRecordTime {
				err = fmt.Errorf("for is %.100q: write a duration above 0s and up to %v", text, MaxRecordTime)
			}
		case name == "max_bytes":
			if q.MaxBytes, err = units.Bytes(text); err != nil || q.MaxBytes < 1 || q.MaxBytes > MaxRecordBytes {
				err = fmt.Errorf("max_bytes is %.100q: write 1 to %d, or with a unit, as 64MiB", text, MaxRecordBytes)
			}
		default:
			err = fmt.Errorf("unknown parameter %.100q; write sample, by, domain, for or max_bytes", name)
		}
		if err != nil {
			return q, err
		}
	}
	return q, nil
}

type recordAPI struct {
	record   Record
	hasToken bool
}

// ServeHTTP streams a recording. A recording has what callers sent, so that without a token only programs on this host
// may start one.
func (a recordAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if !a.hasToken && !isLocal(r) {
		http.Error(w, "set DEBUG_TOKEN to record requests from other hosts; without it, only programs on the host of the "+
			"service may, without a proxy", http.StatusForbidden)
		return
	}
	q, err := parseRecordQuery(r.URL.RawQuery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("X-Accel-Buffering", "no") // A proxy must pass lines on at once.
	if r.Method == http.MethodHead {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), q.For)
	defer cancel()
	out := &recordWriter{w: w, left: q.MaxBytes}
	// The server's read timeout would end the request. It fails only in tests, for connections without deadlines.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	err = a.record(ctx, q, clientOf(r), out.write)
	_, isRefused := errors.AsType[*operator.Refusal](err)
	switch {
	case isRefused:
		w.Header().Set("Retry-After", "10")
		writeRefusal(w, err)
	case errors.Is(err, errRecordFull):
		w.Header().Set(RecordEndTrailer, RecordEndMaxBytes)
	case err == nil && r.Context().Err() == nil:
		w.Header().Set(RecordEndTrailer, RecordEndTime)
	}
}

var errRecordFull = errors.New("the recording has its most bytes")

type recordWriter struct {
	w      http.ResponseWriter
	left   int64     // how many bytes of lines may follow.
	sentAt time.Time // the time of the last write; zero before the first.
}

// write writes lines to the client, as many as may follow. If there are none, it writes an empty line after
// recordPause, and the first time, so that the client learns at once that the recording runs.
func (o *recordWriter) write(lines []byte) (err error) {
	if int64(len(lines)) > o.left {
		lines, err = lines[:bytes.LastIndexByte(lines[:o.left], '\n')+1], errRecordFull
	}
	o.left -= int64(len(lines))
	switch {
	case o.sentAt.IsZero():
		o.w.Header().Set("Trailer", RecordEndTrailer)
	case len(lines) == 0 && time.Since(o.sentAt) < recordPause:
		return err
	}
	if len(lines) == 0 {
		lines = []byte("\n")
	}
	o.sentAt = time.Now()
	controller := http.NewResponseController(o.w)
	// It fails only in tests, for connections without deadlines.
	_ = controller.SetWriteDeadline(o.sentAt.Add(recordWriteTimeout))
	if _, failed := o.w.Write(lines); failed != nil {
		return failed
	}
	if failed := controller.Flush(); failed != nil {
		return failed
	}
	return err
}
