package main

import (
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/grpclog"

	"ratelimit/src/metrics"
	"ratelimit/src/metrics/prometheus"
	"ratelimit/src/service/logging"
	"ratelimit/src/settings"
)

// outputs is where a service writes as long as it runs: through queues, so that a
// reader of stdout or stderr that is slow, stuck or gone stops nothing.
type outputs struct {
	out, err *logging.Writer
	std      stdio     // what is behind the queues
	deadline time.Time // for the last words; zero: lastWords from the end on
}

// lastWords is how long the end of the process may take, from when everything else
// has stopped, for what is not written yet.
const lastWords = 1900 * time.Millisecond

// printed is an error that the log has said already.
type printed struct{ error }

func (p printed) Unwrap() error { return p.error }

// serving has run use queues in front of std. It prints the error of run, and
// returns when all is written or lastWords have passed.
func serving(std stdio, run func(*outputs) error) error {
	o := &outputs{out: logging.New(logging.Config{To: std.out}), err: logging.New(logging.Config{To: std.err}), std: std}
	go o.out.Run()
	go o.err.Run()
	defer func() { // after a panic, too
		if o.deadline.IsZero() {
			o.deadline = time.Now().Add(lastWords)
		}
		o.out.Close(o.deadline)
		o.err.Close(o.deadline)
	}()
	err := run(o)
	if err != nil {
		fmt.Fprintln(o.err.Important(), "ratelimit:", err)
		return printed{err}
	}
	return nil
}

// ownProcess is for commands that are the whole process: it ignores SIGPIPE, by which
// Go ends a process whose stdout or stderr has no reader, and has libraries with
// global logs write to o.
func ownProcess(o *outputs) {
	signal.Ignore(syscall.SIGPIPE)
	log.SetOutput(o.err)
	info, warning, failure := io.Discard, io.Discard, io.Discard
	switch strings.ToLower(os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL")) { // as gRPC itself reads it
	case "info":
		info = o.err
	case "warning":
		warning = o.err
	default:
		failure = o.err
	}
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(info, warning, failure))
}

// logs are the loggers of a service.
type logs struct {
	main     *logrus.Logger
	audit    *logrus.Logger // like main, and its lines may use the reserve of the queue
	denials  *logrus.Logger // like main, at any level: LOG_DENIALS asks for its lines
	announce *logrus.Logger // like audit, at any level: with LOG_LEVEL=error, too, the log says where the service listens
}

// loggers returns the loggers that the settings choose.
func loggers(cfg *settings.Settings, o *outputs) (*logs, error) {
	level, err := logrus.ParseLevel(cfg.LogLevel)
	if err != nil {
		return nil, fmt.Errorf("LOG_LEVEL: %w", err)
	}
	logger := func(to io.Writer, level logrus.Level) *logrus.Logger {
		l := logrus.New()
		l.SetOutput(to)
		l.SetLevel(level)
		l.SetFormatter(&logrus.TextFormatter{ForceColors: isTerminal(o.std.err)}) // logrus would look at the queue
		if strings.EqualFold(cfg.LogFormat, "json") {
			l.SetFormatter(&logrus.JSONFormatter{
				TimestampFormat: time.RFC3339Nano,
				FieldMap:        logrus.FieldMap{logrus.FieldKeyTime: "@timestamp", logrus.FieldKeyMsg: "@message"},
			})
		}
		l.SetFormatter(&cutLines{l.Formatter, logging.DefaultMaxLine})
		return l
	}
	important := o.err.Important()
	l := &logs{main: logger(o.err, level), audit: logger(important, level), announce: logger(important, logrus.InfoLevel), denials: logger(o.err, logrus.InfoLevel)}
	o.err.OnDrained(func(dropped uint64) {
		l.announce.Warnf("%d log lines were dropped because the reader of stderr did not keep up", dropped)
	})
	return l, nil
}

// cutLines bounds the length of a line in bytes. Texts of callers and servers are in
// the log, and may be long. The line stays valid JSON.
type cutLines struct {
	logrus.Formatter
	most int
}

// Format cuts the texts of a line that is too long: at first to a half of it, and if
// quotes make it too long still, to an eighth, since JSON makes up to 6 bytes of one.
func (f *cutLines) Format(e *logrus.Entry) ([]byte, error) {
	line, err := f.Formatter.Format(e)
	for _, part := range []int{2, 8} {
		if err != nil || len(line) <= f.most {
			break
		}
		size := f.most / part / (1 + len(e.Data))
		short := e.Dup()
		short.Level, short.Message = e.Level, logging.Cut(e.Message, size)
		for key, value := range short.Data {
			if text := fmt.Sprint(value); len(text) > size {
				short.Data[key] = logging.Cut(text, size)
			}
		}
		line, err = f.Formatter.Format(short)
	}
	return line, err
}

// logStats are the figures of the log's queue.
func (o *outputs) logStats(add func(metrics.Stat)) {
	st := o.err.Stats()
	add(metrics.Stat{Name: "ratelimit.log.dropped", Kind: metrics.KindCounter, Value: int64(st.Dropped)})
	add(metrics.Stat{Name: "ratelimit.log.write_errors", Kind: metrics.KindCounter, Value: int64(st.Failed)})
	add(metrics.Stat{Name: "ratelimit.log.waiting", Kind: metrics.KindGauge, Value: int64(st.Waiting)})
}

// logSamples are the same as native metrics.
func (o *outputs) logSamples(add func(prometheus.Sample)) {
	st := o.err.Stats()
	add(prometheus.Sample{Name: "ratelimit_log_dropped_total", Help: "Log lines dropped because the reader of stderr did not keep up.", Kind: metrics.KindCounter, Value: float64(st.Dropped)})
	add(prometheus.Sample{Name: "ratelimit_log_write_errors_total", Help: "Writes to stderr that failed; they are repeated.", Kind: metrics.KindCounter, Value: float64(st.Failed)})
	add(prometheus.Sample{Name: "ratelimit_log_waiting_bytes", Help: "Bytes of log lines that are not written yet.", Kind: metrics.KindGauge, Value: float64(st.Waiting)})
}

// httpLog takes what net/http says about broken connections, at debug level:
// anybody can cause it.
func httpLog(l *logrus.Logger) *log.Logger { return log.New(debugWriter{l}, "", 0) }

type debugWriter struct{ log *logrus.Logger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.log.Debug(strings.TrimSpace(string(p)))
	return len(p), nil
}
