package integration

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/testbed/xdstest"
)

// sources are the three sources of rules of TestSources, and the environment of a service that uses them all.
type sources struct {
	files       ruleDir
	sotw, delta *xdstest.Server
	sotwAddress string
	deltaAddr   string
	env         []string
}

func listenAt(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func startSources(t *testing.T) *sources {
	t.Helper()
	one, two := listenAt(t, "127.0.0.1:0"), listenAt(t, "127.0.0.1:0")
	s := &sources{
		files: newRuleDir(t), sotwAddress: one.Addr().String(), deltaAddr: two.Addr().String(),
		sotw: xdstest.Start(t, one), delta: xdstest.Start(t, two),
	}
	s.env = append(s.files.env(), "CONFIG_TYPE=FILE,GRPC_XDS_SOTW,GRPC_XDS_DELTA",
		"CONFIG_GRPC_XDS_SERVER_URL="+s.sotwAddress, "CONFIG_GRPC_XDS_NODE_ID=node",
		"CONFIG_GRPC_XDS2_SERVER_URL="+s.deltaAddr, "CONFIG_GRPC_XDS2_NODE_ID=node",
		"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=50ms", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=50ms",
		"XDS_CLIENT_BACKOFF_MAX_INTERVAL=100ms")
	return s
}

// sourceFile returns a file with a limit for ip.
func sourceFile(domain string, perYear int) string {
	return fmt.Sprintf("domain: %s\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: %d}}]\n", domain,
		perYear)
}

// sourceResource returns the same as a resource.
func sourceResource(domain string, perYear uint32) *configv3.RateLimitConfig {
	return &configv3.RateLimitConfig{Name: domain, Domain: domain, Descriptors: []*configv3.RateLimitDescriptor{{
		Key: "ip", RateLimit: &configv3.RateLimitPolicy{Unit: configv3.RateLimitUnit_YEAR, RequestsPerUnit: perYear},
	}}}
}

// untilLimits waits until /rlconfig has these limits, such as "jobs=2 web=5".
func (s *service) untilLimits(t *testing.T, want string) {
	t.Helper()
	s.until(t, "the limits are "+want, func() error {
		page, err := get("http://" + s.debug + "/rlconfig")
		if err != nil {
			return err
		}
		var limits []string
		for line := range strings.Lines(string(page)) {
			if name, rest, ok := strings.Cut(line, ".ip: unit=YEAR requests_per_unit="); ok {
				perYear, _, _ := strings.Cut(rest, ",")
				limits = append(limits, name+"="+perYear)
			}
		}
		if got := strings.Join(limits, " "); got != want {
			return fmt.Errorf("they are %q", got)
		}
		return nil
	})
}

// untilLogged waits until the log has the text.
func (s *service) untilLogged(t *testing.T, text string) {
	t.Helper()
	s.until(t, "the log has "+text, func() error {
		if !strings.Contains(s.log(t), text) {
			return errors.New("it has not")
		}
		return nil
	})
}

// The binary takes rules from files, from a server of the state of the world and from one of delta xDS, all at once.
func TestSources(t *testing.T) {
	t.Parallel()
	from := startSources(t)
	from.files.put(t, "web.yaml", sourceFile("web", 2))
	from.files.put(t, "api.yaml", sourceFile("api", 2))
	from.sotw.Publish(t, "node", "v1", sourceResource("jobs", 2))
	from.delta.Publish(t, "node", "w1", sourceResource("mail", 2), sourceResource("chat", 2))
	s := startService(t, from.env...)
	s.untilLimits(t, "api=2 web=2 jobs=2 chat=2 mail=2")

	// A domain of another source is refused. The message names both sources, in the log and to the server.
	from.delta.Publish(t, "node", "w2", sourceResource("mail", 3), sourceResource("jobs", 9))
	conflict := fmt.Sprintf(
		`is in two sources of rules: the xds server %s has it already, so it is not taken from the xds server %s`,
		from.sotwAddress, from.deltaAddr)
	s.untilLimits(t, "api=2 web=2 jobs=2 mail=3")
	s.untilLogged(t, conflict)
	s.until(t, "the server is told", func() error {
		for _, r := range from.delta.DeltaRequests() {
			if strings.Contains(r.GetErrorDetail().GetMessage(), conflict) {
				return nil
			}
		}
		return errors.New("it is not")
	})
	from.files.put(t, "api.yaml", sourceFile("mail", 9))
	s.untilLogged(t, fmt.Sprintf(`the xds server %s has it already, so it is not taken from the files in %s`,
		from.deltaAddr, from.files.files))
	s.untilLimits(t, "api=2 web=2 jobs=2 mail=3")

	// While a server is away its rules stay, and decide.
	from.sotw.Stop()
	s.untilLogged(t, "the rules stay as they are")
	from.files.put(t, "api.yaml", sourceFile("api", 5))
	s.untilLimits(t, "api=5 web=2 jobs=2 mail=3")
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		if got, _ := s.ask(t, "jobs", "ip=1"); got != want {
			t.Errorf("request %d to a domain of the server that is away: %d, want %d", i+1, got, want)
		}
	}
	restartWithoutServer(t, from, s)
}

// restartWithoutServer starts the service again while the server of the state of the world is away, and then the
// server.
func restartWithoutServer(t *testing.T, from *sources, s *service) {
	t.Helper()
	s.stop(t)
	s = startServiceUnready(t, from.env...)
	s.untilLimits(t, "api=5 web=2 jobs=9 mail=3") // Delta has jobs now, because the other server has not.
	s.until(t, "the missing source is named", func() error {
		if page, err := get("http://" + s.debug + "/readyz"); err == nil ||
			!strings.Contains(err.Error()+string(page), from.sotwAddress) {
			return fmt.Errorf("/readyz: %w %s", err, page)
		}
		return nil
	})
	from.sotw = xdstest.Start(t, listenAt(t, from.sotwAddress))
	from.sotw.Publish(t, "node", "v2", sourceResource("more", 4))
	s.untilLimits(t, "api=5 web=2 more=4 jobs=9 mail=3")
	s.awaitReady(t)
}
