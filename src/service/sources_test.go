package service

import (
	"net/http"
	"strings"
	"testing"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/testbed/xdstest"
)

// named is a domain with a limit for ip.
func named(name string, perYear uint32) *configv3.RateLimitConfig {
	d := domain(perYear)
	d.Name, d.Domain = name, name
	return d
}

// threeSources is a service whose rules come from files and from two management servers.
type threeSources struct {
	*service
	sotw, delta               *xdstest.Server
	sotwAddress, deltaAddress string
}

func launchThreeSources(t *testing.T, vars ...string) *threeSources {
	t.Helper()
	one, two := listenLocal(t, ""), listenLocal(t, "")
	s := &threeSources{
		sotw: xdstest.Start(t, one), delta: xdstest.Start(t, two), sotwAddress: one.Addr().String(),
		deltaAddress: two.Addr().String(),
	}
	s.sotw.Publish(t, "default", "v1", named("jobs", 2))
	s.delta.Publish(t, "second", "w1", named("mail", 2))
	s.service = launch(t, "domain: web\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 2}}]\n",
		append([]string{
			"CONFIG_TYPE=FILE,GRPC_XDS_SOTW,GRPC_XDS_DELTA", "LOG_LEVEL=info",
			"CONFIG_GRPC_XDS_SERVER_URL=" + s.sotwAddress, "CONFIG_GRPC_XDS2_SERVER_URL=" + s.deltaAddress,
			"CONFIG_GRPC_XDS2_NODE_ID=second",
			"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=20ms", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=20ms",
			"XDS_CLIENT_BACKOFF_MAX_INTERVAL=100ms",
			"DISABLE_STATS=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0",
		}, vars...)...)
	return s
}

// untilLimits waits until /rlconfig has these limits, such as "jobs=2 web=5".
func (s *threeSources) untilLimits(want string) {
	s.until("the limits "+want, func() bool {
		_, page := s.get("debug", "/rlconfig")
		var got []string
		for line := range strings.Lines(page) {
			if name, rest, ok := strings.Cut(line, ".ip: unit=YEAR requests_per_unit="); ok {
				perYear, _, _ := strings.Cut(rest, ",")
				got = append(got, name+"="+perYear)
			}
		}
		return strings.Join(got, " ") == want
	})
}

// TestSourcesOfRules takes a service through the faults of each of its sources.
func TestSourcesOfRules(t *testing.T) {
	t.Parallel()
	s := launchThreeSources(t)
	s.until("ready", s.healthy)
	s.untilLimits("web=2 jobs=2 mail=2")

	// A conflict is told to the source that came second, and in the log. Both sources go on changing otherwise.
	s.sotw.Publish(t, "default", "v2", named("jobs", 3), named("web", 9))
	conflict := `xds resource "web": domain "web" is in two sources of rules: the files in ` + s.dir + ` has it already, so it is not taken from the xds server ` + s.sotwAddress
	s.until("the server is told", func() bool {
		all := s.sotw.Requests()
		return strings.Contains(all[len(all)-1].GetErrorDetail().GetMessage(), conflict)
	})
	s.untilLimits("web=2 jobs=3 mail=2")
	s.until("the log", s.logged(strings.ReplaceAll(conflict, `"`, `\"`)))
	if code, page := s.get("debug", "/readyz"); code != http.StatusOK || !strings.Contains(page, "rules from xds") ||
		!strings.Contains(page, "is in two sources of rules") {
		t.Errorf("/readyz: %d %s", code, page)
	}
	if _, page := s.get("debug", "/rlconfig"); !strings.Contains(page, "# newer rules from xds were refused at ") {
		t.Errorf("/rlconfig: %s", page)
	}
	// When the first owner gives the domain up, the second gets it at once.
	s.write("rules.yaml", "domain: other\n")
	s.untilLimits("jobs=3 web=9 mail=2")

	// A source that is away keeps its rules; the others change.
	s.delta.Stop()
	s.until("the loss is told", s.logged("(the rules stay as they are, next attempt in "))
	s.sotw.Publish(t, "default", "v3", named("jobs", 4))
	s.untilLimits("jobs=4 mail=2")
	if !s.healthy() {
		t.Error("a source that is away makes the service unhealthy")
	}
	s.delta = xdstest.Start(t, listenLocal(t, s.deltaAddress))
	s.delta.Publish(t, "second", "w2", named("mail", 5), named("new", 1))
	s.untilLimits("jobs=4 mail=5 new=1")
	if page := s.page("prometheus", "/metrics"); !strings.Contains(page,
		`ratelimit_config_source_domains{source="xds2"} 2`) {
		t.Errorf("/metrics has not the domains of xds2:\n%s", page)
	}
	s.delta.Publish(t, "second", "w3")
	s.untilLimits("jobs=4")
}

// Until each source has loaded rules, the service is not ready and says which one is missing.
func TestSourcesNotReady(t *testing.T) {
	t.Parallel()
	s := launchThreeSources(t, "CONFIG_GRPC_XDS2_NODE_ID=nobody")
	s.untilLimits("web=2 jobs=2") // what is there is in force
	code, page := s.get("debug", "/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(page, "the rules are not loaded yet") {
		t.Errorf("/readyz: %d %s", code, page)
	}
	if s.logged("msg=ready")() {
		t.Error("it says that it is ready")
	}
	s.delta.Publish(t, "nobody", "w1")
	s.until("ready", s.healthy)
	s.until("the ready line", s.logged("msg=ready"))

	s = launchThreeSources(t, "CONFIG_GRPC_XDS2_NODE_ID=nobody", "FORCE_START_WITHOUT_INITIAL_CONFIG=true")
	s.until("healthy without one source", s.healthy)
}
