package settings

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestUnits(t *testing.T) {
	t.Parallel()
	s, warnings, err := Read(env("MEMORY_MAX_BYTES=4GiB", "MAX_BUFFERED_BYTES=1.5 MiB", "GRPC_MAX_MESSAGE_BYTES=64KB",
		"QUOTA_MAX_REPORT_BYTES=2Ki", "DIVVY_MAX_LINE_BYTES=16M", "RESP_MAX_COMMAND_BYTES=0x10000", "LOG_DENIALS=600/m",
		"GRPC_MAX_CONNECTION_AGE=1d12h", "NEAR_LIMIT_RATIO=75%", "OTEL_METRICS_EXPORTER=otlp",
		"OTEL_METRIC_EXPORT_INTERVAL=15s", "OTEL_METRIC_EXPORT_TIMEOUT=5000"))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, %q", err, warnings)
	}
	if s.MemoryMaxBytes != 4<<30 || s.MaxBuffered != 3<<19 || s.GRPCMaxMessage != 64_000 ||
		s.QuotaMaxReportBytes != 2048 ||
		s.Divvy.MaxLineBytes != 16e6 || s.RESP.MaxCommandBytes != 1<<16 || s.LogDenials != 10 ||
		s.GRPCMaxConnectionAge != 36*time.Hour || s.NearLimitRatio != 0.75 || s.OTLPMetrics.IntervalMilliseconds != 15_000 ||
		s.OTLPMetrics.TimeoutMilliseconds != 5000 {
		t.Errorf("%+v", s)
	}
	s, _, err = Read(env("BACKEND_TYPE=redis", "EXPIRATION_JITTER_MAX_SECONDS=5m", "LOCAL_CACHE_SIZE_IN_BYTES=64MiB"))
	if err != nil || s.ExpirationJitter != 300 || s.LocalCacheBytes != 64<<20 {
		t.Errorf("%+v, %v", s, err)
	}
	for text, want := range map[string]string{
		"MEMORY_MAX_BYTES=4GiBB":        "write a number of bytes, 128KiB or more, such as 4GiB",
		"MEMORY_MAX_BYTES=4 gigabytes":  "write a number of bytes, 128KiB or more, such as 4GiB",
		"MEMORY_MAX_BYTES=9999999TiB":   "write a number of bytes, 128KiB or more, such as 9999999KiB",
		"MEMORY_MAX_BYTES=64KiB":        "write a number of bytes, 128KiB or more",
		"GRPC_MAX_MESSAGE_BYTES=8 megs": "write a number of bytes, such as 8MiB",
		"SHUTDOWN_DRAIN=5 minutes":      "write a duration with its unit, such as 5m",
		"RUNTIME_DEBOUNCE=250":          "write a duration with its unit, such as 250s",
		"LOG_DENIALS=10 per second":     "write a whole number per second, 0 to 10000, such as 10/s",
		"LOG_DENIALS=1/m":               "write a whole number per second, 0 to 10000, such as 1/s",
		"NEAR_LIMIT_RATIO=0,8":          "write a number, 0 to 1, such as 0.8",
	} {
		if _, _, err := Read(env(text)); err == nil || err.Error() != text+": "+want {
			t.Errorf("got %v\nwant %s: %s", err, text, want)
		}
	}
}

// What an error recommends is accepted.
func FuzzFix(f *testing.F) {
	for _, text := range []string{
		"5", "-1", "4GiBB", "1,5", "5 minutes", "1/m", "80", "0,8", "x", "99999999999", "0.0001d", "7 days", "1e9", "NaN",
	} {
		f.Add(text)
	}
	type variable struct {
		Variable
		field reflect.Value
	}
	var variables []variable
	fields := make(map[string]reflect.Value)
	addFields(fields, reflect.ValueOf(new(Settings)).Elem(), "")
	for _, v := range Table() {
		if field, ok := fields[v.Name]; ok {
			variables = append(variables, variable{v, field})
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, v := range variables {
			scratch := reflect.New(v.field.Type()).Elem()
			if v.assign(scratch, text) == nil {
				continue
			}
			_, recommended, found := strings.Cut(v.fix(text, v.field), ", such as ")
			if err := v.assign(scratch, recommended); found && err != nil {
				t.Errorf("%s=%s: %s is recommended, and is %v", v.Name, text, recommended, err)
			}
		}
	})
}
