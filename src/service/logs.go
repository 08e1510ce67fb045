package service

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
	"golang.org/x/term"
	"google.golang.org/grpc/grpclog"

	"ratelimit/src/algorithm"
	"ratelimit/src/operator/denials"
	"ratelimit/src/operator/unmatched"
	"ratelimit/src/service/logging"
	"ratelimit/src/settings"
)

// logs are the loggers of a service. The embedded one writes ordinary lines.
type logs struct {
	*logrus.Logger
	important      *logrus.Logger // for lines for which the queue reserves room.
	alwaysShown    *logrus.Logger // for important lines that LOG_LEVEL does not suppress.
	deniedRequests *logrus.Logger // for lines that LOG_DENIALS turns on at any LOG_LEVEL.
}

// newLogs returns the loggers that the settings choose.
func newLogs(cfg *settings.Settings, o *Output) (*logs, error) {
	level, err := logrus.ParseLevel(cfg.LogLevel)
	if err != nil {
		return nil, fmt.Errorf("LOG_LEVEL: %w", err)
	}
	// Logrus sees only the queue, which is no terminal.
	var format logrus.Formatter = &logrus.TextFormatter{ForceColors: IsTerminal(o.stderr)}
	if strings.EqualFold(cfg.LogFormat, "json") {
		format = &logrus.JSONFormatter{
			TimestampFormat: time.RFC3339Nano,
			FieldMap:        logrus.FieldMap{logrus.FieldKeyTime: "@timestamp", logrus.FieldKeyMsg: "@message"},
		}
	}
	logger := func(to io.Writer, level logrus.Level) *logrus.Logger {
		l := logrus.New()
		l.SetOutput(to)
		l.SetLevel(level)
		l.SetFormatter(&lineCutter{format, logging.MaxLineBytes})
		return l
	}
	important := o.errQueue.Important()
	l := &logs{
		logger(o.errQueue, level), logger(important, level), logger(important, logrus.InfoLevel),
		logger(o.errQueue, logrus.InfoLevel),
	}
	o.errQueue.OnDrained(func(dropped uint64) {
		l.alwaysShown.Warnf("%d log lines were dropped because the reader of stderr did not keep up", dropped)
	})
	return l, nil
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// lineCutter bounds the length of a line in bytes, since texts of callers and servers may be long. The line stays valid
// JSON.
type lineCutter struct {
	logrus.Formatter
	maxBytes int
}

// Format cuts the texts of a line that is too long to half of maxBytes together. If that line is
// still too long because of JSON's escapes, it cuts them to an eighth.
func (f *lineCutter) Format(e *logrus.Entry) ([]byte, error) {
	line, err := f.Formatter.Format(e)
	for _, part := range []int{2, 8} {
		if err != nil || len(line) <= f.maxBytes {
			break
		}
		size := f.maxBytes / part / (1 + len(e.Data))
		short := e.Dup()
		short.Level, short.Message = e.Level, logging.CutText(e.Message, size)
		for key, value := range short.Data {
			if text := fmt.Sprint(value); len(text) > size {
				short.Data[key] = logging.CutText(text, size)
			}
		}
		line, err = f.Formatter.Format(short)
	}
	return line, err
}

// httpLog logs the messages of net/http about broken connections at debug level, since any client can cause them.
func httpLog(l *logrus.Logger) *log.Logger { return log.New(debugWriter{l}, "", 0) }

type debugWriter struct{ log *logrus.Logger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.log.Debug(strings.TrimSpace(string(p)))
	return len(p), nil
}

func logDenial(to *logrus.Logger) func(denials.Denial) {
	return func(d denials.Denial) {
		fields := logrus.Fields{
			"domain": d.Domain, "rule": d.Rule, "subject": d.Descriptor,
			"wait": d.RetryAfter.Round(time.Millisecond).String(),
		}
		if d.Rule == "" {
			fields["rule"] = "limit of the request"
		}
		if d.RetryAfter == algorithm.Never {
			fields["wait"] = "never"
		}
		if d.StoreFailed {
			fields["reason"] = "the store does not answer"
		}
		if d.SkippedDenials > 0 {
			fields["skipped"] = d.SkippedDenials
		}
		to.WithFields(fields).Info("denied")
	}
}

// logInterval has at most one line about something that may concern every request.
const logInterval = 10 * time.Second

// unmatchedLinesPerSecond bounds the lines about descriptors without a rule, which callers cause.
const unmatchedLinesPerSecond = 10

func logUnmatched(to *logrus.Logger) func(unmatched.Sample) {
	return func(s unmatched.Sample) {
		fields, message := logrus.Fields{"domain": s.Domain, "keys": s.Keys, "reason": s.Reason}, "no rule applies"
		if s.IsUnknownDomain {
			fields, message = logrus.Fields{"domain": s.Domain}, "unknown domain"
		}
		if s.Skipped > 0 {
			fields["skipped"] = s.Skipped
		}
		to.WithFields(fields).Debug(message)
	}
}

// Output writes to stdout and stderr through queues, so a reader that is slow, stuck or gone does not block the
// service.
type Output struct {
	outQueue, errQueue *logging.Writer
	stdout, stderr     io.Writer // The queues write to these.
	flushDeadline      time.Time // ends the writing of queued lines. Zero: logFlushTimeout after run returns.
}

// logFlushTimeout bounds how long the process writes queued lines after all else has stopped.
const logFlushTimeout = 1900 * time.Millisecond

// WithOutput calls run with queues in front of stdout and stderr. It writes the error of
// run to stderr and returns it, when everything is written or logFlushTimeout have passed.
func WithOutput(stdout, stderr io.Writer, run func(*Output) error) error {
	o := &Output{outQueue: logging.New(stdout), errQueue: logging.New(stderr), stdout: stdout, stderr: stderr}
	go o.outQueue.Run()
	go o.errQueue.Run()
	defer func() { // The queues are written after a panic, too.
		if o.flushDeadline.IsZero() {
			o.flushDeadline = time.Now().Add(logFlushTimeout)
		}
		o.outQueue.Close(o.flushDeadline)
		o.errQueue.Close(o.flushDeadline)
	}()
	err := run(o)
	if err != nil {
		fmt.Fprintln(o.errQueue.Important(), "ratelimit:", err)
	}
	return err
}

// OwnProcess is for commands that are the whole process. It ignores SIGPIPE, with which Go ends a process whose stdout
// or stderr has no reader, and sends the global logs of libraries to o.
func (o *Output) OwnProcess() {
	signal.Ignore(syscall.SIGPIPE)
	log.SetOutput(o.errQueue)
	info, warning, failure := io.Discard, io.Discard, io.Discard
	switch strings.ToLower(os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL")) { // gRPC reads this variable in the same way.
	case "info":
		info = o.errQueue
	case "warning":
		warning = o.errQueue
	default:
		failure = o.errQueue
	}
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(info, warning, failure))
}
