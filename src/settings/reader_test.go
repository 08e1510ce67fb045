package settings

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestMemoryMaxBytesFollowsMemoryLimit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit, set string
		want       int64
	}{
		{"", "", 256 << 20},
		{"off", "", 256 << 20},
		{"224MiB", "", 112 << 20},
		{"67108864", "", 32 << 20},
		{"67108864B", "", 32 << 20},
		{"1024KiB", "", 512 << 10},
		{"8GiB", "", 256 << 20},                // no more than without
		{"9223372036854775807", "", 256 << 20}, // as "off"
		{"9000000TiB", "", 256 << 20},
		{"-1", "", 256 << 20},
		{"5MB", "", 256 << 20},
		{"1", "", minMemoryBytes},
		{"224MiB", "268435456", 256 << 20},
	} {
		s, _, err := Read(Environment{"GOMEMLIMIT": tt.limit, "MEMORY_MAX_BYTES": tt.set})
		if err != nil || s.MemoryMaxBytes != tt.want {
			t.Errorf("GOMEMLIMIT=%s MEMORY_MAX_BYTES=%s: %d, %v, want %d", tt.limit, tt.set, s.MemoryMaxBytes, err, tt.want)
		}
	}
}

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": math.MaxInt64, "off": math.MaxInt64, "224MiB": 224 << 20} {
		s, _, err := Read(Environment{"GOMEMLIMIT": text})
		if err != nil || s.MemoryLimit != want {
			t.Errorf("GOMEMLIMIT=%s: %d, %v, want %d", text, s.MemoryLimit, err, want)
		}
	}
}

func TestMaxBufferedFollowsMemoryLimit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit, set string
		want       int64 // 0: refused
	}{
		{"", "", 256 << 20},
		{"off", "", 256 << 20},
		{"9223372036854775807", "", 256 << 20}, // as "off"
		{"224MiB", "", 56 << 20},
		{"1GiB", "", 256 << 20},
		{"4TiB", "", 1 << 40},
		{"67108864", "", 16 << 20},
		{"67108864B", "", 16 << 20},
		{"1024KiB", "", 1 << 20}, // a quarter is less than the least
		{"9000000TiB", "", 256 << 20},
		{"-1", "", 256 << 20},
		{"5MB", "", 256 << 20},
		{"224MiB", "1048576", 1 << 20},
		{"", "1048575", 0},
		{"", "0", 0},
		{"", "-5", 0},
	} {
		s, _, err := Read(Environment{"GOMEMLIMIT": tt.limit, "MAX_BUFFERED_BYTES": tt.set})
		switch {
		case tt.want == 0 && err == nil:
			t.Errorf("GOMEMLIMIT=%s MAX_BUFFERED_BYTES=%s: accepted as %d", tt.limit, tt.set, s.MaxBuffered)
		case tt.want > 0 && (err != nil || s.MaxBuffered != tt.want):
			t.Errorf("GOMEMLIMIT=%s MAX_BUFFERED_BYTES=%s: %d, %v, want %d", tt.limit, tt.set, s.MaxBuffered, err, tt.want)
		}
	}
}

// Kubernetes' links to Services are no settings, whatever the name of the Service.
func TestServiceLinks(t *testing.T) {
	t.Parallel()
	const host, port, link = "_SERVICE_HOST=10.96.0.7", "_PORT", "tcp://10.96.0.7:8321"
	ports := 0
	for _, v := range append(Table(), DivvyTable()...) {
		service, isPort := strings.CutSuffix(v.Name, port)
		if !isPort {
			continue
		}
		ports++
		want := v.Name + "=" + link + " has no effect: it is Kubernetes' link to a Service, not a port of this service; " +
			"set enableServiceLinks: false in the pod"
		for _, read := range []func(Environment) (*Settings, []string, error){Read, ReadDivvy} {
			_, warnings, err := read(env(service+host, v.Name+"="+link))
			if isKnown := len(warnings) > 0; err != nil || isKnown && !slices.Equal(warnings, []string{want}) {
				t.Errorf("%s: %q, %v", v.Name, warnings, err)
			}
		}
	}
	if ports < 9 {
		t.Errorf("only %d ports", ports)
	}
	s, _, err := Read(env("DIVVY"+host, "DIVVY_PORT="+link))
	if err != nil || !s.Divvy.OpensWhenNeeded || s.Divvy.Port != DivvyPort {
		t.Errorf("the port of divvy is not as without the variable: %+v, %v", s.Divvy, err)
	}
}

// A line break at the end of a value is left out. Blanks and quotes at the ends of REDIS_URL are, too, but not those of
// a password.
func TestBlanksAndQuotes(t *testing.T) {
	t.Parallel()
	const lineBreak, urlEnds = " ends with a line break, which is left out",
		"REDIS_URL begins or ends with blanks or quotes, which are left out"
	const password = "_AUTH begins or ends with a blank or a quote, which is sent as a part of the password; remove it " +
		"if Redis refuses the password"
	for _, tt := range []struct {
		name, value string
		want        func(*Settings) string
		is          string
		warning     string
	}{
		{"REDIS_URL", "a:1\n", func(s *Settings) string { return s.Redis.Addrs[0] }, "a:1", "REDIS_URL" + lineBreak},
		{"REDIS_URL", " a:1", func(s *Settings) string { return s.Redis.Addrs[0] }, "a:1", urlEnds},
		{"REDIS_URL", "'a:1'", func(s *Settings) string { return s.Redis.Addrs[0] }, "a:1", urlEnds},
		{
			"REDIS_URL", "redis://:secret@a:1/2\" ",
			func(s *Settings) string { return s.Redis.Addrs[0] + s.Redis.DB + s.Redis.Auth }, "a:12:secret", urlEnds,
		},
		{"REDIS_AUTH", "secret\r\n", func(s *Settings) string { return s.Redis.Auth }, "secret", "REDIS_AUTH" + lineBreak},
		{"REDIS_AUTH", "secret ", func(s *Settings) string { return s.Redis.Auth }, "secret ", "REDIS" + password},
		{"REDIS_AUTH", `"secret"`, func(s *Settings) string { return s.Redis.Auth }, `"secret"`, "REDIS" + password},
		{
			"REDIS_SENTINEL_AUTH", " secret", func(s *Settings) string { return s.Redis.SentinelAuth }, " secret",
			"REDIS_SENTINEL" + password,
		},
		{
			"RESP_PASSWORD", "secret\n", func(s *Settings) string { return s.RESP.Password }, "secret",
			"RESP_PASSWORD" + lineBreak,
		},
		{"LOG_FORMAT", "json\n", func(s *Settings) string { return s.LogFormat }, "json", "LOG_FORMAT" + lineBreak},
		{"CACHE_KEY_PREFIX", "p\n", func(s *Settings) string { return s.CacheKeyPrefix }, "p\n", ""},
	} {
		s, warnings, err := Read(env("BACKEND_TYPE=redis", tt.name+"="+tt.value))
		got := strings.Join(warnings, "|")
		if err != nil || tt.want(s) != tt.is || got != tt.warning || strings.Contains(got, "secret") {
			t.Errorf("%s=%q: %q, %v, %q\nwant %q, %q", tt.name, tt.value, tt.want(s), err, got, tt.is, tt.warning)
		}
	}
	if _, _, err := Read(env("BACKEND_TYPE=redis", "REDIS_URL= \n")); err == nil ||
		err.Error() != "REDIS_URL=: write host:port, the path of a socket, or redis://host:port" {
		t.Errorf("only blanks: %v", err)
	}
}
