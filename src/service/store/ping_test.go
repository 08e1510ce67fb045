package store

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus/hooks/test"

	"ratelimit/src/backend/remote"
	"ratelimit/src/service/logging"
)

// lateClient is a client whose server answers pings from an instant on.
type lateClient struct {
	client
	from time.Time
}

func (c lateClient) Ping(context.Context) error {
	if time.Now().Before(c.from) {
		return errors.New("connection refused")
	}
	return nil
}

func (lateClient) Stats() remote.Stats { return remote.Stats{} }

// A store that answers half a second after the start has no line. One that stays silent has.
func TestFirstAnswer(t *testing.T) {
	for after, want := range map[time.Duration]bool{300 * time.Millisecond: false, 3 * time.Second: true} {
		synctest.Test(t, func(t *testing.T) {
			log, lines := test.NewNullLogger()
			s := &Store{cfg: Config{Log: &logging.Loggers{Logger: log}, OnPing: func() {}}}
			p := &Pool{
				labelInMessages: "Redis", firstPingPause: time.Second, maxPingPause: time.Minute, pingTimeout: time.Second,
				client: lateClient{from: time.Now().Add(after)},
			}
			if err := s.pingUntilHealthy(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			isSaid := false
			for _, line := range lines.AllEntries() {
				isSaid = isSaid || line.Message == "not ready: Redis does not answer: connection refused"
			}
			if isSaid != want {
				t.Errorf("it answers after %v: said %t, want %t", after, isSaid, want)
			}
		})
	}
}
