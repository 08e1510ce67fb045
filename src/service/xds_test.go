package service

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
	"ratelimit/testbed/xdstest"
)

// domain is the domain d with a limit for ip.
func domain(perYear uint32) *configv3.RateLimitConfig {
	return &configv3.RateLimitConfig{Name: "d", Domain: "d", Descriptors: []*configv3.RateLimitDescriptor{{
		Key: "ip", RateLimit: &configv3.RateLimitPolicy{Unit: configv3.RateLimitUnit_YEAR, RequestsPerUnit: perYear},
	}}}
}

// listenLocal listens on an address of this host; empty: a free one.
func listenLocal(t *testing.T, address string) net.Listener {
	t.Helper()
	if address == "" {
		address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // a server may have closed it
	return l
}

// launchXDS starts a service whose rules come from address.
func launchXDS(t *testing.T, address string, vars ...string) *service {
	t.Helper()
	return launch(t, "domain: from-a-file\n", append([]string{
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + address, "LOG_LEVEL=info",
		"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=20ms", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=20ms",
		"XDS_CLIENT_BACKOFF_MAX_INTERVAL=100ms",
	}, vars...)...)
}

// inForce says whether the only rule of domain d allows perYear.
func (s *service) inForce(perYear string) func() bool {
	return func() bool {
		_, body := s.get("debug", "/rlconfig")
		if strings.HasPrefix(body, "# newer rules were refused at 20") {
			_, body, _ = strings.Cut(body, "\n")
		}
		return body == "d.ip: unit=YEAR requests_per_unit="+perYear+", shadow_mode: false, quota_mode: false\n"
	}
}

func TestXDS(t *testing.T) {
	before := goleak.IgnoreCurrent()
	l := listenLocal(t, "")
	address := l.Addr().String()
	m := xdstest.Start(t, l)
	m.Publish(t, "default", "v1", domain(2))
	s := launchXDS(t, address)
	s.until("ready", s.healthy)
	s.until("the ready line", func() bool {
		return s.logged("msg=ready")() && s.logged(`version=v1 xds="`+address+`"`)() && s.logged("resources=1")()
	})
	for i, want := range []int{200, 200, 429} {
		if got := s.ask("1"); got != want {
			t.Errorf("request %d: got %d, want %d", i+1, got, want)
		}
	}
	inForce := s.inForce
	m.Publish(t, "default", "v2", domain(5))
	s.until("the new limit", inForce("5"))
	m.Publish(t, "default", "v3", &configv3.RateLimitConfig{Name: "d"})
	s.until("refused", s.logged(`rules refused, the old ones stay in force" resources=1 version=v3`))
	s.until("the reason", s.logged(`xds resource \"d\": the domain is missing or empty`))
	s.until("the server is told", func() bool {
		all := m.Requests()
		last := all[len(all)-1]
		return strings.HasPrefix(last.GetErrorDetail().GetMessage(), `xds resource "d": the domain is missing`) &&
			last.GetVersionInfo() == "v2"
	})
	if !s.healthy() || !inForce("5")() {
		t.Error("the old rules are not in force")
	}
	if code, page := s.get("http", "/readyz"); code != 200 ||
		!strings.Contains(page, "1 domain, version v2, the last load was refused at 20") ||
		strings.Contains(page, "xds resource") {
		t.Errorf("/readyz: %d %s", code, page)
	}
	if code, page := s.get("debug", "/readyz"); code != 200 || !strings.Contains(page, "Z: xds resource") {
		t.Errorf("the debug port's /readyz: %d %s", code, page)
	}
	_, stats := s.get("debug", "/stats")
	for _, want := range []string{
		"ratelimit.service.config_load_success: 2\n", "ratelimit.service.config_load_error: 1\n",
		"ratelimit.xds.cx_active: 1\n", "ratelimit.xds.cx_total: 1\n", "ratelimit.xds.cx_failed: 0\n",
		"ratelimit.xds.acks: 2\n",
	} {
		if !strings.Contains(stats, want) {
			t.Errorf("/stats lacks %s:\n%s", want, stats)
		}
	}
	m.Stop()
	s.until("the loss is told", s.logged("(the rules stay as they are, next attempt in "))
	if !s.healthy() || !inForce("5")() {
		t.Error("the rules went with the server")
	}
	if code, page := s.get("http", "/readyz"); code != 200 ||
		!strings.Contains(page, ", there is no stream to the management server") {
		t.Errorf("/readyz: %d %s", code, page)
	}
	if code, page := s.get("debug", "/readyz"); code != 200 || !strings.Contains(page, ", xds server "+address+": ") {
		t.Errorf("the debug port's /readyz: %d %s", code, page)
	}
	m = xdstest.Start(t, listenLocal(t, address))
	m.Publish(t, "default", "v0", domain(9))
	s.until("the rules of the server that came back", inForce("9"))
	s.until("its return is told", s.logged(`level=warning msg="connected to the xds server `+address+" again as node"))

	loads := func() int { return strings.Count(s.log.String(), "rules reloaded") }
	soFar := loads()
	s.signals <- syscall.SIGHUP
	s.until("fetched again", func() bool { return loads() > soFar })

	m.Publish(t, "default", "v9")
	s.until("nothing is limited any more", s.logged("everything passes"))
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	m.Stop()
	goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// With delta xDS only what changes is sent, also after the server was gone.
func TestXDSDelta(t *testing.T) {
	t.Parallel()
	l := listenLocal(t, "")
	address := l.Addr().String()
	m := xdstest.Start(t, l)
	m.Publish(t, "default", "v1", domain(2))
	s := launchXDS(t, address, "CONFIG_TYPE=GRPC_XDS_DELTA")
	s.until("ready", s.healthy)
	m.Publish(t, "default", "v2", domain(5))
	s.until("the new limit", s.inForce("5"))
	m.Publish(t, "default", "v3", &configv3.RateLimitConfig{Name: "d"})
	s.until("the server is told", func() bool {
		all := m.DeltaRequests()
		return strings.HasPrefix(all[len(all)-1].GetErrorDetail().GetMessage(), `xds resource "d": the domain is missing`)
	})
	if !s.healthy() || !s.inForce("5")() {
		t.Error("the old rules are not in force")
	}
	m.Stop()
	s.until("the loss is told", s.logged("(the rules stay as they are, next attempt in "))
	m = xdstest.Start(t, listenLocal(t, address))
	m.Publish(t, "default", "v4", domain(5))
	s.until("the version in force is named", func() bool {
		all := m.DeltaRequests()
		return len(all) > 1 && len(all[0].GetInitialResourceVersions()) == 1
	})
	m.Publish(t, "default", "v5", domain(9))
	s.until("the rules of the server that came back", s.inForce("9"))
	m.Publish(t, "default", "v6")
	s.until("nothing is limited any more", s.logged("everything passes"))
}

// Until there are rules, the service is up and says why it is not ready.
func TestXDSNotReady(t *testing.T) {
	t.Parallel()
	l := listenLocal(t, "")
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := launchXDS(t, address)
	says := func(text string) func() bool {
		return func() bool {
			code, body := s.get("debug", "/readyz")
			return code == http.StatusServiceUnavailable && strings.Contains(body, text)
		}
	}
	s.until("who is not there", says("no rules are loaded: xds server "+address+": connection error"))
	if code, body := s.get("http", "/healthcheck"); code != http.StatusInternalServerError ||
		body != "no rules are loaded: there is no stream to the management server\n" {
		t.Errorf("/healthcheck: %d %s", code, body)
	}
	if got := s.ask("1"); got != http.StatusServiceUnavailable {
		t.Errorf("got %d", got)
	}
	m := xdstest.Start(t, listenLocal(t, address))
	m.Publish(t, "default", "1", &configv3.RateLimitConfig{Name: "d"})
	s.until("what is wrong with them", says(`Z: xds resource \"d\": the domain is missing`))
	m.Stop()
	s.until("the loss", s.logged("(there are no rules yet and the ports of callers stay closed, next attempt in "))
	if !says("the domain is missing")() {
		t.Error("the rules are not what is said to be wrong any more")
	}
	m = xdstest.Start(t, listenLocal(t, address))
	m.Publish(t, "default", "1", domain(2))
	s.until("ready", s.healthy)

	s = launchXDS(t, "127.0.0.1:1", "FORCE_START_WITHOUT_INITIAL_CONFIG=true")
	s.until("healthy without rules", s.healthy)
	err := launchXDS(t, "127.0.0.1:1", "CONFIG_INITIAL_TIMEOUT=500ms").wait()
	if !errors.Is(err, errNoRulesInTime) || !strings.Contains(err.Error(), "xds server 127.0.0.1:1: ") {
		t.Errorf("ended with %v", err)
	}
	err = launchXDS(t, "%zz").wait()
	if err == nil || !strings.Contains(err.Error(), "CONFIG_GRPC_XDS_SERVER_URL") {
		t.Errorf("ended with %v", err)
	}
}

// serverTLS asks clients for a certificate of the test's authority.
func serverTLS(t *testing.T, c *harness.Certificates, pair harness.Pair) grpc.ServerOption {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	pem := testfiles.Read(t, c.CA)
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(pem) {
		t.Fatal("no authority")
	}
	return grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{cert}, ClientCAs: clients,
		ClientAuth: tls.RequireAndVerifyClientCert,
	}))
}

func TestXDSOverTLS(t *testing.T) {
	t.Parallel()
	c := harness.NewCertificates(t)
	const ca, san = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT=", "CONFIG_GRPC_XDS_SERVER_TLS_SAN="
	vars := func(ca, cert, key string) []string {
		return []string{
			"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + ca, "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + cert,
			"CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + key,
		}
	}
	with := func(pair harness.Pair, more ...string) []string {
		return append(vars(c.CA, pair.Cert, pair.Key), more...)
	}
	const setAuthority = "set CONFIG_GRPC_XDS_SERVER_TLS_CACERT to a PEM file"
	const setName = "set CONFIG_GRPC_XDS_SERVER_TLS_SAN to a name that is in the server's certificate"
	for _, tt := range []struct {
		name   string
		server harness.Pair // empty: plain text
		vars   []string
		want   string // in the log; "" is ready
	}{
		{"all in order", c.Server, with(c.Client), ""},
		{"another name", c.WrongHost, with(c.Client, san+"elsewhere.example"), ""},
		{"no authority", c.Server, vars("", c.Client.Cert, c.Client.Key), setAuthority},
		{"the wrong authority", c.Server, vars(c.OtherCA, c.Client.Cert, c.Client.Key), setAuthority},
		{"the wrong name", c.WrongHost, with(c.Client), setName},
		{"the wrong SAN", c.Server, with(c.Client, san+"elsewhere.example"), setName},
		{
			"the server's has expired", c.ExpiredServer, with(c.Client),
			"renew the server's certificate, or set this host's clock",
		},
		{
			"no certificate", c.Server,
			[]string{ca + c.CA},
			"the server wants a certificate: set CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
		},
		{
			"ours has expired", c.Server, with(c.ExpiredClient),
			"renew the certificate of CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
		},
		{"ours is of others", c.Server, with(c.OtherClient), "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"},
		{
			"the server has no TLS",
			harness.Pair{},
			[]string{ca + c.CA},
			"the server speaks plain text: set CONFIG_GRPC_XDS_SERVER_USE_TLS=false",
		},
		{
			"we have none", c.Server,
			[]string{"CONFIG_GRPC_XDS_SERVER_USE_TLS=false"},
			"does it want TLS (CONFIG_GRPC_XDS_SERVER_USE_TLS)?",
		},
		{
			"a file is missing", c.Server,
			[]string{ca + "/nowhere/ca.crt"},
			"CONFIG_GRPC_XDS_SERVER_TLS_CACERT: open /nowhere/ca.crt: no such file",
		},
		{
			"a file is none", c.Server,
			[]string{ca + c.Client.Key},
			"CONFIG_GRPC_XDS_SERVER_TLS_CACERT: " + c.Client.Key + ": no certificate in PEM form in it",
		},
		{
			"a key of another", c.Server, vars(c.CA, c.Client.Cert, c.Server.Key),
			"CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY: tls: private key does not match public key",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var opts []grpc.ServerOption
			if tt.server.Cert != "" {
				opts = append(opts, serverTLS(t, c, tt.server))
			}
			l := listenLocal(t, "")
			m := xdstest.Start(t, l, opts...)
			m.Publish(t, "default", "1", domain(2))
			s := launchXDS(t, l.Addr().String(),
				append([]string{
					"CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
					"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:hunter2",
				}, tt.vars...)...)
			if tt.want == "" {
				s.until("ready", s.healthy)
			} else {
				s.until(tt.want, s.logged(tt.want))
				if s.healthy() {
					t.Error("healthy")
				}
			}
			if s.logged("hunter2")() {
				t.Error("a secret is logged")
			}
		})
	}
}

// Certificates change without a restart: each connection reads them.
func TestXDSCertificatesChange(t *testing.T) {
	t.Parallel()
	c := harness.NewCertificates(t)
	mine := c.Issue(t, "mine", harness.Spec{CommonName: "mine", Expired: true})
	l := listenLocal(t, "")
	m := xdstest.Start(t, l, serverTLS(t, c, c.Server))
	m.Publish(t, "default", "1", domain(2))
	s := launchXDS(t, l.Addr().String(), "CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT="+c.CA,
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT="+mine.Cert, "CONFIG_GRPC_XDS_CLIENT_TLS_KEY="+mine.Key)
	s.until("not let in", s.logged("renew the certificate of CONFIG_GRPC_XDS_CLIENT_TLS_CERT"))
	c.Issue(t, "mine", harness.Spec{CommonName: "mine"})
	s.until("ready", s.healthy)

	// The same path now has another authority.
	m.Stop()
	other := testfiles.Read(t, c.OtherCA)
	own := testfiles.Read(t, c.CA)
	testfiles.Write(t, c.CA, append(own, other...))
	m = xdstest.Start(t, listenLocal(t, l.Addr().String()), serverTLS(t, c, c.OtherServer))
	m.Publish(t, "default", "2", domain(3))
	s.until("the rules of the new server", func() bool {
		_, body := s.get("debug", "/rlconfig")
		return strings.Contains(body, "requests_per_unit=3")
	})
}

// If a management server sends nothing, the log names the likely reason, once.
func TestXDSSilence(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: takes 10 seconds")
	}
	l := listenLocal(t, "")
	xdstest.Start(t, l).Publish(t, "somebody-else", "1", domain(2))
	s := launchXDS(t, l.Addr().String())
	s.until("the question", s.logged(
		`has no rules for us yet: does it know the node \"default\" (CONFIG_GRPC_XDS_NODE_ID)?`))
	if code, body := s.get("http", "/healthcheck"); code != 500 ||
		!strings.Contains(body, "the rules are not loaded yet") {
		t.Errorf("%d %s", code, body)
	}
}
