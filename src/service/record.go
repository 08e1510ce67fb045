package service

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/operator"
	"ratelimit/src/operator/recording"
)

// record records requests until ctx ends or write fails. The log tells who has recorded what, because a recording has
// what callers sent.
func (s *Service) record(ctx context.Context, q admin.RecordQuery, client operator.Client,
	write func([]byte) error,
) error {
	fields := logrus.Fields{"by": client.Addr, "percent": q.Percent, "for": q.For.String()}
	optional := logrus.Fields{"user": client.User, "by_key": q.ByKey, "domain": q.Domain}
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
			s.log.AlwaysShown.WithFields(fields).WithTime(time.Now()).Info("requests are being recorded")
		}
		bytes += len(lines)
		return write(lines)
	})
	if errors.Is(err, recording.ErrTooMany) {
		return operator.Refuse(http.StatusTooManyRequests,
			"%d recordings run, which are the most at a time; end one of them, or try again later", recording.MaxRecordings)
	}
	fields["bytes"] = bytes
	s.log.AlwaysShown.WithFields(fields).WithTime(time.Now()).Info("the recording of requests has ended")
	return err
}
