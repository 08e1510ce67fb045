package logging

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/operator/output"
)

// Loggers are the loggers of a service. The embedded one writes ordinary lines.
type Loggers struct {
	*logrus.Logger
	Important      *logrus.Logger // for lines for which the queue reserves room.
	AlwaysShown    *logrus.Logger // for important lines that LOG_LEVEL does not suppress.
	DeniedRequests *logrus.Logger // for lines that LOG_DENIALS turns on at any LOG_LEVEL.
}

// NewLoggers returns the loggers for the values of LOG_LEVEL and LOG_FORMAT. They write to o.
func NewLoggers(levelName, formatName string, o *Output) (*Loggers, error) {
	level, err := logrus.ParseLevel(levelName)
	if err != nil {
		return nil, fmt.Errorf("LOG_LEVEL: %w", err)
	}
	// Logrus sees only the queue, which is no terminal.
	var format logrus.Formatter = &logrus.TextFormatter{ForceColors: output.IsTerminal(o.Stderr)}
	if strings.EqualFold(formatName, "json") {
		format = &logrus.JSONFormatter{
			TimestampFormat: time.RFC3339Nano, DisableHTMLEscape: true, // people copy subjects
			FieldMap: logrus.FieldMap{logrus.FieldKeyTime: "@timestamp", logrus.FieldKeyMsg: "@message"},
		}
	}
	logger := func(to io.Writer, level logrus.Level) *logrus.Logger {
		l := logrus.New()
		l.SetOutput(to)
		l.SetLevel(level)
		l.SetFormatter(&lineCutter{format, maxLineBytes})
		return l
	}
	important := o.errQueue.important()
	l := &Loggers{
		logger(o.errQueue, level), logger(important, level), logger(important, logrus.InfoLevel),
		logger(o.errQueue, logrus.InfoLevel),
	}
	o.errQueue.onDrained(func(dropped uint64) {
		l.AlwaysShown.Warnf("%d log lines were dropped because the reader of stderr did not keep up", dropped)
	})
	return l, nil
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
		short.Level, short.Message = e.Level, cutText(e.Message, size)
		for key, value := range short.Data {
			if text := fmt.Sprint(value); len(text) > size {
				short.Data[key] = cutText(text, size)
			}
		}
		line, err = f.Formatter.Format(short)
	}
	return line, err
}
