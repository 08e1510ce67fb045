package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/operator"
	"ratelimit/src/operator/recording"
	"ratelimit/src/overrides"
)

// auditLine begins a line of the log about what a client has done on the debug port. No LOG_LEVEL suppresses it.
func (f *foundation) auditLine(client operator.Client, fields logrus.Fields) *logrus.Entry {
	fields["by"] = client.Addr
	if client.User != "" {
		fields["user"] = client.User
	}
	return f.log.AlwaysShown.WithFields(fields).WithTime(time.Now())
}

// logCounterChange writes the audit line of a change.
func (f *foundation) logCounterChange(report *operator.CounterReport, client operator.Client, err error) {
	c := &report.CounterChange
	fields := logrus.Fields{"action": c.Action, "domain": c.Domain, "descriptor": c.DescriptorText()}
	if c.Used != nil {
		fields["used"] = *c.Used
	}
	if c.IsPattern() {
		fields["counters"] = report.Matching
	} else if report.Before != nil {
		fields["before"], fields["after"] = countsText(report.Before), countsText(report.Counters)
	}
	if report.Warning != "" {
		fields["warning"] = report.Warning
	}
	line := f.auditLine(client, fields)
	if err != nil {
		line.WithError(err).Warn("counters not changed, or only some")
		return
	}
	line.Info("counters changed")
}

// countsText returns counts as "rule 3 of 5, rule 7 of 100".
func countsText(counters []operator.Counter) string {
	var parts []string
	for _, c := range counters {
		parts = append(parts, fmt.Sprintf("%s %d of %d", c.Rule, c.Used, c.Limit))
	}
	return strings.Join(parts, ", ")
}

// logLimitChange writes the line of the audit about a change of a limit.
func (f *foundation) logLimitChange(report *operator.LimitReport, client operator.Client, err error) {
	o := &report.Override
	fields := logrus.Fields{
		"action": report.Action, "domain": o.Domain, "subject": o.Subject, "who": o.Who, "reason": o.Reason,
	}
	if o.Rule != "" {
		fields["rule"] = o.Rule
	}
	if report.Before != nil {
		fields["before"] = report.Before.Note()
	}
	if report.Action == overrides.ActionSet && err == nil {
		fields["after"] = o.Note()
	}
	line := f.auditLine(client, fields)
	if err != nil {
		line.WithError(err).Warn("limit not changed")
		return
	}
	line.Info("limit changed")
}

// record records requests until ctx ends or write fails. The log tells who has recorded what, because a recording has
// what callers sent.
func (s *Service) record(ctx context.Context, q admin.RecordQuery, client operator.Client,
	write func([]byte) error,
) error {
	fields := logrus.Fields{"percent": q.Percent, "for": q.For.String()}
	optional := logrus.Fields{"by_key": q.ByKey, "domain": q.Domain}
	for name, value := range optional {
		if value != "" {
			fields[name] = value
		}
	}
	bytes, hasStarted := 0, false
	cfg := recording.Config{Percent: q.Percent, ByKey: q.ByKey, Domain: q.Domain}
	err := s.observers.recording.Stream(ctx, cfg, func(lines []byte) error {
		if !hasStarted {
			hasStarted = true
			s.auditLine(client, fields).Info("requests are being recorded")
		}
		bytes += len(lines)
		return write(lines)
	})
	if errors.Is(err, recording.ErrTooMany) {
		return operator.Refuse(http.StatusTooManyRequests,
			"%d recordings run, which are the most at a time; end one of them, or try again later", recording.MaxRecordings)
	}
	fields["bytes"] = bytes
	s.auditLine(client, fields).Info("the recording of requests has ended")
	return err
}
