package main

import (
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/settings"
)

// loggers returns the process' log, and one like it that prints at any level:
// whoever sets LOG_LEVEL=error still wants to see where the service listens.
func loggers(cfg *settings.Settings, to io.Writer) (main, announce *logrus.Logger, err error) {
	level, err := logrus.ParseLevel(cfg.LogLevel)
	if err != nil {
		return nil, nil, fmt.Errorf("LOG_LEVEL: %w", err)
	}
	main, announce = logrus.New(), logrus.New()
	main.SetLevel(level)
	announce.SetLevel(logrus.InfoLevel)
	for _, l := range []*logrus.Logger{main, announce} {
		l.SetOutput(to)
		if strings.EqualFold(cfg.LogFormat, "json") {
			l.SetFormatter(&logrus.JSONFormatter{
				TimestampFormat: time.RFC3339Nano,
				FieldMap:        logrus.FieldMap{logrus.FieldKeyTime: "@timestamp", logrus.FieldKeyMsg: "@message"},
			})
		}
	}
	return main, announce, nil
}

// httpLog takes what net/http says about broken connections, at debug level:
// anybody can cause it.
func httpLog(l *logrus.Logger) *log.Logger { return log.New(debugWriter{l}, "", 0) }

type debugWriter struct{ log *logrus.Logger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.log.Debug(strings.TrimSpace(string(p)))
	return len(p), nil
}
