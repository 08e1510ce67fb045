package service

import (
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/notify"
	"ratelimit/src/operator/output"
	"ratelimit/src/operator/throttle"
	"ratelimit/src/rules"
	"ratelimit/src/service/store"
)

// newNotifier makes what sends webhooks about subjects that use much of a limit.
func newNotifier(f *foundation, s *store.Store) (*notify.Notifier, error) {
	if address := f.Settings.NotifyURL; address != "" {
		if why, fix := rules.WhyNoWebhook(address); why != "" {
			return nil, fmt.Errorf("NOTIFY_URL: %s; %s", why, fix)
		}
	}
	keys, err := notify.ParseKeys(f.Settings.NotifySecret)
	if err != nil {
		return nil, fmt.Errorf("NOTIFY_SECRET: %w", err)
	}
	lines := throttle.New(1, logInterval)
	n := notify.New(notify.Config{
		Backend: s.Backend, KeyPrefix: f.Settings.CacheKeyPrefix, DefaultURL: f.Settings.NotifyURL,
		Variable: func(name string) string { return f.Settings.NotifyURLs[name] }, Keys: keys,
		UserAgent: "ratelimit/" + f.Version,
		OnFailure: func(host string, err error) {
			if skipped, ok := lines.Pass(time.Now()); ok {
				fields := logrus.Fields{"skipped": skipped}
				if host != "" {
					fields["address"] = host
				}
				f.log.WithFields(fields).WithError(err).Warn("a webhook about a subject was not delivered")
			}
		},
	})
	f.run(n.Run)
	f.counters.ShowFigures("notify", "", n.Stats)
	return n, nil
}

// warnUntold warns of rules with notify about whose subjects nobody is told.
func (f *foundation) warnUntold(n *notify.Notifier, set *rules.Set) {
	problem, first, count := "", "", 0
	for _, r := range set.Rules() {
		if why := n.Problem(r); why != "" {
			if count++; count == 1 {
				problem, first = why, fmt.Sprintf("%s at %v", r.FullName, r.Pos)
			}
		}
	}
	if count > 0 {
		f.log.Warnf("nobody is told about subjects of %s with notify, such as %s: %s", output.Plural(count, "rule"), first, problem)
	}
}
