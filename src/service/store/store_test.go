package store

import (
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"ratelimit/src/backend/memcached"
	"ratelimit/src/backend/remote"
	"ratelimit/src/service/logging"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The error of a slow server says what to set. Callers read no address.
func TestSlowError(t *testing.T) {
	t.Parallel()
	p := Pool{labelInMessages: "Redis", timeoutSetting: "REDIS_TIMEOUT"}
	got := p.slowError(&remote.SlowError{
		Store: "redis", Addr: "10.1.2.3:6379", PingTime: 60_700 * time.Microsecond, Timeout: 50 * time.Millisecond,
	})
	const class = "Redis answers in 61 ms, REDIS_TIMEOUT is 50 ms"
	if want := (Error{class, class + ": set it to 130ms or more (10.1.2.3:6379)"}); *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

func TestServersChange(t *testing.T) {
	t.Parallel()
	log, hook := test.NewNullLogger()
	s := Store{cfg: Config{Log: &logging.Loggers{Logger: log}}}
	s.logServerChange(memcached.ServersChange{Before: []string{"a:1", "b:1"}, After: []string{"a:1"}, MovedKeyShare: 0.5})
	const want = "MEMCACHE_SRV: the servers were a:1, b:1 and are a:1 now: 50 % of all keys have another server, where " +
		"they are counted from 0"
	if e := hook.LastEntry(); e == nil || e.Message != want || e.Level != logrus.WarnLevel {
		t.Errorf("got %+v", e)
	}
}
