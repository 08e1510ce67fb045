package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sinkRules are what the tests of sinks count with.
var sinkRules = []sentence{{rules: `
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 5}}
- {key: idle, rate_limit: {unit: year, requests_per_unit: 5}}
`}}

// countSome makes three calls, and returns what they and the start count as.
func countSome(t *testing.T, u *upstream) map[string]int64 {
	t.Helper()
	u.runStep(t, "grpc", "grpc0", 1, step{ask: "a=1", want: "OK 4/5 YEAR"})
	u.runStep(t, "grpc", "grpc0", 2, step{ask: "a=1 [hits 6]", want: "OVER_LIMIT 0/5 YEAR"})
	u.runStep(t, "grpc", "nowhere", 3, step{ask: "a=1", want: "OK"})
	return map[string]int64{
		ruleStats + "grpc0.a.total_hits":                  7,
		ruleStats + "grpc0.a.within_limit":                1,
		ruleStats + "grpc0.a.near_limit":                  1,
		ruleStats + "grpc0.a.over_limit":                  2,
		ruleStats + "nowhere.domain_not_found":            1,
		serviceStats + "config_load_success":              1,
		"ratelimit_server.ShouldRateLimit.total_requests": 3,
	}
}

const (
	callTimer = "ratelimit_server.ShouldRateLimit.response_time"
	someGauge = "ratelimit.go.numGoroutine"
	noFlush   = "STATS_FLUSH_INTERVAL=1h"
	fastFlush = "STATS_FLUSH_INTERVAL=20ms"
)

// Lines for a statsd server, read from its socket.
func TestUpstreamStatsd(t *testing.T) {
	for _, protocol := range []string{"tcp", "udp"} {
		t.Run(protocol, func(t *testing.T) { sendsDeltas(t, protocol) })
		t.Run(protocol+", tags and end", func(t *testing.T) { sendsTags(t, protocol) })
	}
	t.Run("a server that comes late is found, and nothing is lost meanwhile", func(t *testing.T) {
		early := listenSink(t, "tcp", "127.0.0.1:0")
		port := portOf(t, early.addr)
		early.close(t)
		u := startUpstream(t, []string{"USE_STATSD=true", "STATSD_HOST=127.0.0.1", "STATSD_PORT=" + port, fastFlush},
			sinkRules)
		want := countSome(t, u)
		late := listenSink(t, "tcp", "127.0.0.1:"+port)
		soon(t, "the counters have come", func() error { return late.adds(want) })
	})
	t.Run("a server that vanishes or blocks holds up nothing", outlivesItsServer)
	t.Run("DISABLE_STATS: drops all stats, wins over all sinks, and then no conflict is reported", disableStatsWins)
}

func outlivesItsServer(t *testing.T) {
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // connections are accepted and never read
	if err != nil {
		t.Fatal(err)
	}
	u := startUpstream(t, []string{
		"USE_STATSD=true", "STATSD_HOST=127.0.0.1", "STATSD_PORT=" + portOf(t, deaf.Addr()),
		fastFlush,
	}, sinkRules)
	u.runStep(t, "grpc", "grpc0", 1, step{ask: "a=1", times: 3, want: "OK 2/5 YEAR"})
	if err := deaf.Close(); err != nil {
		t.Error(err)
	}
	u.runStep(t, "grpc", "grpc0", 2, step{ask: "a=1", want: "OK 1/5 YEAR"})
	u.stop(t) // in time
}

func disableStatsWins(t *testing.T) {
	received := listenSink(t, "udp", "127.0.0.1:0")
	u := startUpstream(t, []string{
		"DISABLE_STATS=true", "USE_STATSD=true", "USE_DOG_STATSD=true",
		"STATSD_HOST=127.0.0.1", "STATSD_PORT=" + portOf(t, received.addr), "STATSD_PROTOCOL=udp", fastFlush,
	}, sinkRules)
	u.runStep(t, "grpc", "grpc0", 1, step{ask: "a=1", want: "OK 4/5 YEAR"})
	u.stop(t)
	received.send(t, "last:1|c") // what the service sent has come before it
	soon(t, "the last line has come", func() error {
		if len(received.values("last", "c")) == 0 {
			return errors.New("it has not")
		}
		return nil
	})
	if all := received.all(); len(all) != 1 {
		t.Errorf("%d lines were sent, such as %v", len(all)-1, all[0])
	}
}

func sendsDeltas(t *testing.T, protocol string) {
	t.Helper()
	received := listenSink(t, protocol, "127.0.0.1:0")
	env := []string{
		"USE_STATSD=true", "STATSD_HOST=127.0.0.1", "STATSD_PORT=" + portOf(t, received.addr),
		"STATSD_PROTOCOL=" + protocol,
	}
	u := startUpstream(t, append(env, fastFlush), sinkRules)
	want := countSome(t, u)
	t.Run("counters are deltas name:value|c, only if non-zero", func(t *testing.T) {
		soon(t, "the counters add up", func() error { return received.adds(want) })
		u.runStep(t, "grpc", "grpc0", 4, step{ask: "a=2 + a=3", want: "OK 4/5 YEAR + OK 4/5 YEAR"})
		want[ruleStats+"grpc0.a.total_hits"] += 2
		want[ruleStats+"grpc0.a.within_limit"] += 2
		want["ratelimit_server.ShouldRateLimit.total_requests"]++
		soon(t, "the counters add up again", func() error { return received.adds(want) })
		for _, s := range received.all() {
			if s.kind == "c" && s.value == "0" {
				t.Errorf("the counter %s came with 0", s.name)
			}
		}
	})
	t.Run("gauges every flush, |g", func(t *testing.T) {
		soon(t, "a gauge has come three times", func() error {
			if n := len(received.values(someGauge, "g")); n < 3 {
				return fmt.Errorf("it came %d times", n)
			}
			return nil
		})
	})
	t.Run("ratelimit.go.* are gauges and counters of the Go runtime", func(t *testing.T) {
		for kind, names := range map[string]string{
			"g": "alloc sys heapAlloc heapSys heapIdle heapInuse heapReleased heapObjects nextGC lastGC gcCPUPercent " +
				"numGoroutine",
			"c": "totalAlloc mallocs",
		} {
			for _, name := range strings.Fields(names) {
				if len(received.values("ratelimit.go."+name, kind)) == 0 {
					t.Errorf("there is no ratelimit.go.%s|%s", name, kind)
				}
			}
		}
	})
	t.Run("response_time: whole milliseconds, |ms", func(t *testing.T) {
		soon(t, "there is a time for each call", func() error {
			if n := len(received.values(callTimer, "ms")); n != 4 {
				return fmt.Errorf("%d times for four calls", n)
			}
			return nil
		})
		for _, v := range received.values(callTimer, "ms") {
			if _, err := strconv.ParseUint(v, 10, 64); err != nil && !strings.HasSuffix(v, ".000000") {
				t.Errorf("a time is %q", v)
			}
		}
	})
}

func sendsTags(t *testing.T, protocol string) {
	t.Helper()
	received := listenSink(t, protocol, "127.0.0.1:0")
	u := startUpstream(t, []string{
		"USE_STATSD=true", "STATSD_HOST=127.0.0.1", "STATSD_PORT=" + portOf(t, received.addr), "STATSD_PROTOCOL=" + protocol,
		"EXTRA_TAGS=zone:eu.west|1,app:shop", noFlush,
	}, sinkRules)
	const tags = ".__app=shop.__zone=eu_west_1"
	want := countSome(t, u)
	t.Run("timers at once", func(t *testing.T) {
		soon(t, "the times have come", func() error {
			if n := len(received.values(callTimer+tags, "ms")); n != 3 {
				return fmt.Errorf("%d of three", n)
			}
			return nil
		})
	})
	u.stop(t)
	t.Run("differs: final stats flush at SIGTERM", func(t *testing.T) {
		tagged := make(map[string]int64)
		for name, n := range want {
			tagged[name+tags] = n
		}
		soon(t, "the counters have come", func() error { return received.adds(tagged) })
	})
	t.Run("EXTRA_TAGS end each name, sorted by key, with . : | turned into _", func(t *testing.T) {
		for _, s := range received.all() {
			if !strings.HasSuffix(s.name, tags) {
				t.Errorf("%s has other tags", s.name)
			}
		}
	})
}

// Packets for a DogStatsD agent.
func TestUpstreamDogStatsD(t *testing.T) {
	received := listenSink(t, "udp", "127.0.0.1:0")
	u := startUpstream(t, []string{
		"USE_STATSD=false", "USE_DOG_STATSD=true", "STATSD_HOST=127.0.0.1", "STATSD_PORT=" + portOf(t, received.addr),
		"EXTRA_TAGS=zone:eu.west,app:shop", fastFlush,
		"USE_DOG_STATSD_MOGRIFIERS=RULE,CALL,NEVER",
		`DOG_STATSD_MOGRIFIER_RULE_PATTERN=^ratelimit\.service\.rate_limit\.([^.]+)\.(.+)\.([^.]+)$`,
		"DOG_STATSD_MOGRIFIER_RULE_NAME=limits.$3",
		"DOG_STATSD_MOGRIFIER_RULE_TAGS=domain:$1,rule:r-$2,odd:$9",
		`DOG_STATSD_MOGRIFIER_CALL_PATTERN=server\.(.*)\.total`,
		"DOG_STATSD_MOGRIFIER_CALL_NAME=calls.$1.$2",
		"DOG_STATSD_MOGRIFIER_NEVER_PATTERN=ratelimit_server",
		"DOG_STATSD_MOGRIFIER_NEVER_NAME=never",
	}, sinkRules)
	countSome(t, u)
	tests := []struct {
		sentence, name, tags string
		want                 int64
	}{
		{
			"$1… in name and tag values are groups, an index out of range stays as text", "limits.total_hits",
			"app:shop,domain:grpc0,odd:$9,rule:r-a,zone:eu_west", 7,
		},
		{
			"each counter of a rule is named by the pattern", "limits.over_limit",
			"app:shop,domain:grpc0,odd:$9,rule:r-a,zone:eu_west", 2,
		},
		{
			"the first mogrifier whose pattern matches, unanchored; its tags are optional", "calls.ShouldRateLimit.$2",
			"app:shop,zone:eu_west", 3,
		},
		{
			"names without a mogrifier stay, extra tags become DogStatsD tags", serviceStats + "config_load_success",
			"app:shop,zone:eu_west", 1,
		},
	}
	for _, test := range tests {
		t.Run(test.sentence, func(t *testing.T) {
			soon(t, "the counter has come", func() error {
				got := received.sums()
				if n := got[test.name+"#"+test.tags]; n != test.want {
					return fmt.Errorf("%s#%s is %d, want %d; of %v", test.name, test.tags, n, test.want, slices.Sorted(maps.Keys(got)))
				}
				return nil
			})
		})
	}
	t.Run("timers and gauges are sent too", func(t *testing.T) {
		soon(t, "they have come", func() error {
			if len(received.values("never#app:shop,zone:eu_west", "ms")) != 3 ||
				len(received.values(someGauge+"#app:shop,zone:eu_west", "g")) == 0 {
				return errors.New("they have not")
			}
			return nil
		})
	})
}

// One JSON line per stat and flush when no sink is chosen and debug lines are shown.
func TestUpstreamStatsOnStderr(t *testing.T) {
	u := startUpstream(t, []string{"USE_STATSD=false", "LOG_LEVEL=debug", "EXTRA_TAGS=app:shop", fastFlush}, sinkRules)
	want := countSome(t, u)
	type line struct {
		Level, Logger, Msg string
		TS                 float64
		JSON               struct{ Name, Type, Value any }
	}
	soon(t, "the counters have been written", func() error {
		sums, kinds := make(map[string]int64), make(map[any]int)
		for text := range strings.Lines(u.log(t)) {
			if !strings.HasPrefix(text, "{") || !strings.HasSuffix(text, "}\n") {
				continue
			}
			var l line
			strict := json.NewDecoder(strings.NewReader(text))
			strict.DisallowUnknownFields()
			if err := strict.Decode(&l); err != nil {
				t.Fatalf("%v in %s", err, text)
			}
			if l.Level == "" || l.Logger == "" || l.Msg == "" || l.TS < 1e9 {
				t.Fatalf("a field is missing in %s", text)
			}
			kinds[l.JSON.Type]++
			if l.JSON.Type != "counter" {
				continue
			}
			value, err := strconv.ParseFloat(fmt.Sprint(l.JSON.Value), 64)
			if err != nil {
				t.Fatalf("%v in %s", err, text)
			}
			sums[strings.TrimSuffix(fmt.Sprint(l.JSON.Name), ".__app=shop")] += int64(value)
		}
		if kinds["gauge"] == 0 || kinds["timer"] != 3 {
			return fmt.Errorf("of each type there are %v", kinds)
		}
		return sameCounts(sums, want)
	})
}

// What cannot be meant ends the process at the start, with a text.
func TestUpstreamRefusedSinks(t *testing.T) {
	tests := []struct {
		sentence string
		env      []string
		names    string // in what is printed
	}{
		{"two sinks: statsd and Prometheus", []string{"USE_STATSD=true", "USE_PROMETHEUS=true"}, "USE_PROMETHEUS"},
		{"two sinks: statsd and DogStatsD", []string{"USE_STATSD=true", "USE_DOG_STATSD=true"}, "USE_DOG_STATSD"},
		{"two sinks: DogStatsD and Prometheus", []string{"USE_PROMETHEUS=true", "USE_DOG_STATSD=true"}, "USE_DOG_STATSD"},
		{"maps: exactly one colon per pair", []string{"EXTRA_TAGS=a:b:c"}, "EXTRA_TAGS"},
		{"maps: a pair without a colon", []string{"EXTRA_TAGS=a"}, "EXTRA_TAGS"},
		{"STATS_FLUSH_INTERVAL needs a unit", []string{"STATS_FLUSH_INTERVAL=5"}, "STATS_FLUSH_INTERVAL"},
		{
			"a mogrifier's pattern is required",
			[]string{"USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=X", "DOG_STATSD_MOGRIFIER_X_NAME=n"},
			"DOG_STATSD_MOGRIFIER_X",
		},
		{
			"a mogrifier's name is required",
			[]string{"USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=X", "DOG_STATSD_MOGRIFIER_X_PATTERN=n"},
			"DOG_STATSD_MOGRIFIER_X",
		},
		{
			"a mogrifier's pattern is a regular expression",
			[]string{
				"USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=X", "DOG_STATSD_MOGRIFIER_X_PATTERN=(",
				"DOG_STATSD_MOGRIFIER_X_NAME=n",
			},
			"DOG_STATSD_MOGRIFIER_X",
		},
		{"a mogrifier's empty tag value is refused", []string{
			"USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=X",
			"DOG_STATSD_MOGRIFIER_X_PATTERN=n", "DOG_STATSD_MOGRIFIER_X_NAME=n", "DOG_STATSD_MOGRIFIER_X_TAGS=a:",
		}, "DOG_STATSD_MOGRIFIER_X"},
	}
	for _, test := range tests {
		t.Run(test.sentence, func(t *testing.T) {
			cmd := serviceCommand(t, append(newRuleDir(t).env(), test.env...)...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, patience
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			giveUp := time.AfterFunc(patience/4, func() { _ = cmd.Process.Kill() })
			err := cmd.Wait()
			if !giveUp.Stop() {
				t.Fatalf("it starts:\n%s", tail(out.String()))
			}
			if exit := new(exec.ExitError); !errors.As(err, &exit) || !strings.Contains(out.String(), test.names) {
				t.Errorf("it ends with %v, and does not name %s:\n%s", err, test.names, out.String())
			}
		})
	}
}
