package service

import (
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/algorithm"
	"ratelimit/src/metrics/denials"
)

// logDenial writes a line for a denied request.
func logDenial(to *logrus.Logger) func(denials.Denial) {
	return func(d denials.Denial) {
		fields := logrus.Fields{"domain": d.Domain, "rule": d.Rule, "subject": d.Subject, "wait": d.Wait.Round(time.Millisecond).String()}
		if d.Rule == "" {
			fields["rule"] = "limit of the request"
		}
		if d.Wait == algorithm.Never {
			fields["wait"] = "never"
		}
		if d.StoreFailed {
			fields["reason"] = "the store does not answer"
		}
		if d.Skipped > 0 {
			fields["skipped"] = d.Skipped
		}
		to.WithFields(fields).Info("denied")
	}
}
