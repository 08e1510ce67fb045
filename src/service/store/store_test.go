package store

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"ratelimit/src/backend/fallback"
	"ratelimit/src/backend/memcached"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/remote"
	"ratelimit/src/backend/replicas"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/service/logging"
	"ratelimit/src/settings"
	"ratelimit/testbed/limitertest"
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

// fakeClient is a client of which only the figures are used.
type fakeClient struct {
	client
	stats remote.Stats
}

func (c fakeClient) Stats() remote.Stats { return c.stats }

// What does not answer since when, by pings and calls.
func TestOutage(t *testing.T) {
	t.Parallel()
	pinged, silentSince := time.Unix(1000, 0), time.Unix(2000, 0)
	noAnswer := &Error{"", "no answer"}
	for name, tt := range map[string]struct {
		state           PoolState
		servers, silent int
		want            *Outage
	}{
		"answers":            {PoolState{HasAnswered: true}, 3, 0, nil},
		"before any answer":  {PoolState{Err: noAnswer}, 1, 1, &Outage{"Redis", 1, 1, time.Time{}}},
		"no server is known": {PoolState{Err: noAnswer}, 0, 0, &Outage{"Redis", 1, 1, time.Time{}}},
		"the only server":    {PoolState{HasAnswered: true}, 1, 1, &Outage{"Redis", 1, 1, silentSince}},
		"one of three":       {PoolState{HasAnswered: true}, 3, 1, &Outage{"Redis", 1, 3, silentSince}},
		"only pings fail": {
			PoolState{HasAnswered: true, Err: noAnswer, ChangedAt: pinged},
			2, 0,
			&Outage{"Redis", 2, 2, pinged},
		},
	} {
		stats := remote.Stats{Servers: tt.servers, SilentServers: tt.silent}
		if tt.silent > 0 {
			stats.SilentSince = silentSince
		}
		p := &Pool{labelInMessages: "Redis", client: fakeClient{stats: stats}}
		if got := p.outage(&tt.state); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
}

// The values of on_store_failure that decide are those of limited rules; without any, that of STORE_FAILURE_MODE.
func TestFallbacksOf(t *testing.T) {
	t.Parallel()
	cfg := &settings.Settings{}
	cfg.Failure.DefaultMode = "deny"
	s := &Store{cfg: Config{Settings: cfg}, Fallback: new(fallback.Store)}
	for text, want := range map[string]string{
		"": "[deny]",
		"domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]": "[deny]",
		"domain: d\non_store_failure: local\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}, " +
			"{key: b, rate_limit: {unit: day, requests_per_unit: 1, on_store_failure: error}}]": "[error local]",
	} {
		var set *rules.Set
		if text != "" {
			var err error
			files := []filerules.File{{Name: "d.yaml", Data: []byte(text)}}
			if set, _, err = filerules.Load(files, compile.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint(s.FallbacksOf(set)); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	if got := new(Store).FallbacksOf(nil); got != nil {
		t.Errorf("memory has %v", got)
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

// Replicas count themselves whatever the rules say. It is known which rules may count in this process.
func TestReplicasAreCounted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"",
		"on_store_failure: local, unit: day, requests_per_unit: 5",
		"counting: leased, unit: day, requests_per_unit: 5",
		"on_store_failure: error, unit: day, requests_per_unit: 5",
	} {
		synctest.Test(t, func(t *testing.T) {
			m := limitertest.Store(t, memory.Config{})
			counter, err := replicas.New(m, replicas.Config{})
			if err != nil {
				t.Fatal(err)
			}
			cfg := &settings.Settings{}
			cfg.Failure.DefaultMode = "error"
			s := &Store{cfg: Config{Settings: cfg}, Fallback: new(fallback.Store), Replicas: counter, showLeases: func() {}}
			rule := []byte("domain: d\ndescriptors: [{key: a, rate_limit: {" + text + "}}]")
			if text == "" {
				rule = []byte("domain: d")
			}
			set := limitertest.Rules(t, string(rule))
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- counter.Run(ctx) }()
			s.UseRules(set)
			time.Sleep(time.Minute)
			if !counter.Known() {
				t.Errorf("%s: the replicas are not counted", text)
			}
			if want := strings.Contains(text, "local"); s.HasLocalCounters() != want {
				t.Errorf("%s: local counters %t", text, !want)
			}
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
