package settings

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDivvyVariables(t *testing.T) {
	for _, tt := range []struct {
		env   string
		check func(*Settings) bool
	}{
		{"", func(s *Settings) bool {
			return s.Divvy.OpensAtStart && s.Divvy.Port == 8321 && s.Divvy.UseOnlyList && s.BackendType == "memory" &&
				s.NoHTTP && s.NoGRPC && s.NoDebug &&
				s.Sink == SinkDivvy && s.StatsFlushInterval == time.Second && s.LogLevel == "warn" &&
				*s.DivvyVariables == DivvyVariables{
					Port: 8321, RedisHost: "localhost", RedisPort: 6379,
				}
		}},
		{
			"PORT=9 DIVVY_PORT=x DIVVY_DOMAIN=other HOST=h CONFIG_TYPE=x RUNTIME_ROOT=/r USE_STATSD=yes HTTP_TLS_CERT=c",
			func(s *Settings) bool {
				return s.Divvy.Port == 9 && s.Divvy.UseOnlyList && !s.HTTPTLS.On
			},
		},
		{"DIVVY_MAX_CONNECTIONS=3 DIVVY_KEYS=upstream GRPC_PORT=4 DEBUG_PORT=5 RUNTIME_DEBOUNCE=6s STATS_FLUSH_INTERVAL=7s " +
			"SHUTDOWN_DRAIN=8s", func(s *Settings) bool {
			return s.Divvy.MaxConns == 3 && s.Divvy.KeyFormat == "upstream" && s.GRPCPort == 4 && !s.NoGRPC &&
				s.DebugPort == 5 && !s.NoDebug && s.RuntimeDebounce == 6*time.Second &&
				s.StatsFlushInterval == 7*time.Second && s.ShutdownDrain == 8*time.Second
		}},
		{"GRPC_UDS=/s", func(s *Settings) bool { return !s.NoGRPC }},
		{"REDIS_HOST=r", func(s *Settings) bool { return s.BackendType == "redis" && s.Redis.Addrs[0] == "r:6379" }},
		{"REDIS_PORT=7 REDIS_AUTH=x", func(s *Settings) bool {
			return s.BackendType == "redis" && s.Redis.Addrs[0] == "localhost:7" && s.Redis.Auth == "x"
		}},
		{"REDIS_HOST=::1", func(s *Settings) bool { return s.Redis.Addrs[0] == "[::1]:6379" }},
		{"REDIS_URL=rediss://a:1", func(s *Settings) bool {
			return s.BackendType == "redis" && s.Redis.TLS &&
				s.Redis.Addrs[0] == "a:1"
		}},
		{"REDIS_TIMEOUT=1s", func(s *Settings) bool { return s.BackendType == "memory" }},
		{"REDIS_HOST= REDIS_PORT=", func(s *Settings) bool { return s.BackendType == "memory" }},
		{"BACKEND_TYPE=redis", func(s *Settings) bool {
			return s.BackendType == "redis" &&
				s.Redis.Addrs[0] == "localhost:6379"
		}},
		{"BACKEND_TYPE=memory", func(s *Settings) bool { return s.BackendType == "memory" }},
		{"STATSD_HOST=h STATSD_PORT=1 STATSD_PREFIX=a STATSD_USE_TCP=no", func(s *Settings) bool {
			return s.DivvyVariables.Statsd && s.DivvyVariables.StatsdPrefix == "a." && s.DivvyVariables.StatsdTCP == "no"
		}},
		{"STATSD_HOST=h STATSD_PORT=1 STATSD_PREFIX=a.b. STATSD_USE_TCP=", func(s *Settings) bool {
			return s.DivvyVariables.Statsd && s.DivvyVariables.StatsdPrefix == "a.b." && s.DivvyVariables.StatsdTCP == ""
		}},
		{
			"HTTP_SERVICE_PORT=0 PROMETHEUS_METRICS_PATH=/a/b/",
			func(s *Settings) bool { return s.DivvyVariables.HTTP && s.DivvyVariables.MetricsPath == "/a/b" },
		},
		{
			"HTTP_SERVICE_PORT=1 PROMETHEUS_METRICS_PATH=/",
			func(s *Settings) bool { return s.DivvyVariables.HTTP && s.DivvyVariables.MetricsPath == "/" },
		},
		{"DEBUG=divvy", func(s *Settings) bool { return s.LogLevel == "debug" }},
		{"DEBUG=divvy LOG_LEVEL=error", func(s *Settings) bool { return s.LogLevel == "error" }},
	} {
		s, _, err := ReadDivvy(env(strings.Fields(tt.env)...))
		if err != nil || !tt.check(s) {
			t.Errorf("%s: %v, %+v, %+v", tt.env, err, s, s.DivvyVariables)
		}
	}
}

func TestDivvyVariablesProblems(t *testing.T) {
	_, warnings, err := ReadDivvy(env("PORT=80800", "REDIS_PORT=x", "REDIS_URL=a:1", "HTTP_SERVICE_PORT=-1",
		"STATSD_HOST=h", "DIVVY_ROUND=down"))
	want := []string{
		"PORT=80800: write a port number, 0 to 65535",
		"REDIS_PORT=x: write a port number, 0 to 65535",
		"HTTP_SERVICE_PORT=-1: write a port number, 0 to 65535",
		"REDIS_URL=…: leave it out, or REDIS_HOST and REDIS_PORT: both say where Redis is",
		"DIVVY_ROUND=down: write one of nearest, up",
	}
	if err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("got %v", err)
	}
	if want := []string{
		"nothing is sent to statsd: STATSD_HOST needs STATSD_PORT",
		"there is no HTTP port: HTTP_SERVICE_PORT needs PROMETHEUS_METRICS_PATH",
	}; !slices.Equal(warnings, want) {
		t.Errorf("warned %q", warnings)
	}
	_, warnings, err = ReadDivvy(env("PROMETHEUS_METRICS_PATH=/m", "STATSD_PORT=1"))
	if want := []string{
		"nothing is sent to statsd: STATSD_PORT needs STATSD_HOST",
		"there is no HTTP port: PROMETHEUS_METRICS_PATH needs HTTP_SERVICE_PORT",
	}; err != nil || !slices.Equal(warnings, want) {
		t.Errorf("%v, warned %q", err, warnings)
	}
}

func TestDebugs(t *testing.T) {
	for list, want := range map[string]bool{
		"": false, "divvy": true, "*": true, "div*": true, "*vy": true, "express:*,divvy": true, "express:* divvy": true,
		"divvy:*": false, "express": false, "*,-divvy": false, "-divvy,*": false, "-express,*": true, "divvydivvy*": false,
	} {
		if includesName(list, "divvy") != want {
			t.Errorf("%q: %v", list, !want)
		}
	}
}

func TestDivvyTable(t *testing.T) {
	for _, v := range DivvyTable() {
		if v.Name != strings.ToUpper(v.Name) || v.Type == "" || v.Meaning == "" || strings.Contains(v.Meaning, "|") {
			t.Errorf("%+v", v)
		}
	}
}
