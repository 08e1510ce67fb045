package service

import (
	"fmt"
	"net"
	"strings"

	"github.com/sirupsen/logrus"

	"ratelimit/src/files/certs"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/service/ports"
	"ratelimit/src/service/store"
	"ratelimit/src/settings"
)

// portSet has the addresses that the service listens on.
type portSet struct {
	ports.List
	HTTP, GRPC, Debug, Health, Prometheus, Divvy, RESP *ports.Port

	Budget *connlimit.MemoryBudget // bounds the bytes that connections of all ports hold together.
}

// newPorts returns the ports that the settings ask for, not open yet.
func newPorts(s *settings.Settings) *portSet {
	budget := connlimit.NewMemoryBudget(s.MaxBuffered)
	web := &connlimit.Config{MaxIdleUnderPressure: ports.PressureIdleTimeout, MemoryBudget: budget}
	http1 := []string{"http/1.1"}
	p := &portSet{
		Budget: budget,
		HTTP: &ports.Port{
			Name: "http", OpensAtStart: !s.NoHTTP, AddrVariable: "PORT", Address: ports.HostPort(s.Host, s.Port),
			MaxConns: s.HTTPMaxConns, ConnLimits: web,
			TLS: s.HTTPTLS, TLSVariable: "HTTP_TLS_CERT", ALPN: http1,
		},
		GRPC: &ports.Port{
			Name: "grpc", OpensAtStart: !s.NoGRPC, AwaitsRules: true, AddrVariable: "GRPC_PORT",
			Address: ports.HostPort(s.GRPCHost, s.GRPCPort), Socket: s.GRPCUDS,
			MaxConns:   s.GRPCMaxConns,
			ConnLimits: &connlimit.Config{GreetingWrites: ports.GRPCHandshakeWrites, AnswersAreShort: true},
			TLS:        s.GRPCTLS, TLSVariable: "GRPC_SERVER_TLS_CERT", ALPN: []string{"h2"},
		},
		Debug: &ports.Port{
			Name: "debug", IsForOperators: true, OpensAtStart: !s.NoDebug, IsOptional: true, AddrVariable: "DEBUG_PORT",
			Address: ports.HostPort(s.DebugHost, s.DebugPort), ConnLimits: web,
			TLS: s.DebugTLS, TLSVariable: "DEBUG_TLS_CERT", ALPN: http1,
		},
		Health: &ports.Port{
			Name: "health", IsForOperators: true, OpensAtStart: s.Health, AddrVariable: "HEALTH_PORT",
			Address: ports.HostPort(s.HealthHost, s.HealthPort), ConnLimits: web,
		},
		Prometheus: &ports.Port{
			Name: "prometheus", IsForOperators: true, OpensAtStart: s.Sink == settings.SinkPrometheus, IsOptional: true,
			AddrVariable: "PROMETHEUS_ADDR",
			Address:      s.PrometheusAddr, ConnLimits: web,
		},
		Divvy: pipelinedPort("divvy", &s.Divvy.PipelinedPort, s.Divvy.OpensAtStart),
		RESP:  pipelinedPort("resp", &s.RESP.PipelinedPort, s.RESP.Enabled),
	}
	if s.Sink == settings.SinkDivvy {
		p.Divvy.AddrVariable, p.Prometheus.IsOptional = "PORT", false
		p.Prometheus.OpensAtStart, p.Prometheus.AddrVariable, p.Prometheus.Address = s.DivvyVariables.HTTP,
			"HTTP_SERVICE_PORT", ports.HostPort("", s.DivvyVariables.HTTPPort)
	}
	p.List = ports.List{p.HTTP, p.GRPC, p.Debug, p.Health, p.Prometheus, p.Divvy, p.RESP}
	for _, port := range p.List {
		if !port.OpensAtStart && !(port == p.Divvy && s.Divvy.OpensWhenNeeded) {
			port.MaxConns, port.TLS = 0, settings.ServerTLS{}
		}
	}
	return p
}

// pipelinedPort returns the port of a protocol over TCP.
func pipelinedPort(name string, s *settings.PipelinedPort, opensAtStart bool) *ports.Port {
	prefix := strings.ToUpper(name)
	return &ports.Port{
		Name: name, OpensAtStart: opensAtStart, AwaitsRules: true, AddrVariable: prefix + "_PORT",
		Address: ports.HostPort(s.Host, s.Port), MaxConns: s.MaxConns, TLS: s.TLS, TLSVariable: prefix + "_TLS_CERT",
	}
}

func (f *foundation) logListening(port string, addr net.Addr) {
	f.log.AlwaysShown.WithFields(logrus.Fields{"port": port, "address": addr.String()}).Info("listening")
}

// loadCertificates reads the certificates of the ports that speak TLS.
func (f *foundation) loadCertificates(all *portSet) error {
	for _, p := range all.List {
		if !p.TLS.On {
			continue
		}
		server, err := certs.New(certs.Config{
			Cert: p.TLS.Cert, Key: p.TLS.Key, ClientCA: p.TLS.ClientCA, ClientName: p.TLS.ClientName, Protocols: p.ALPN,
			OnChange: func(err error) {
				if err != nil {
					f.log.Errorf("the %s port keeps its old certificates: %v", p.Name, err)
				} else {
					f.log.Infof("the %s port has new certificates", p.Name)
				}
			},
		})
		if err != nil {
			return fmt.Errorf("%s: %w", p.TLSVariable, err)
		}
		p.TLSConfig = server.TLS()
		f.counters.ShowFigures("certificate", p.Name, server.Stats)
		f.run(server.Run)
	}
	return nil
}

// warnOpenDebug warns if other hosts can reach the debug port without a token or a client certificate.
func (f *foundation) warnOpenDebug(debug *ports.Port) {
	if debug.Listener == nil || f.debugTokens != nil || debug.TLS.ClientCA != "" {
		return
	}
	if addr, ok := debug.Addr().(*net.TCPAddr); ok && !addr.IP.IsLoopback() {
		f.log.Warnf("the debug port %v shows rules, counters and profiles without a token to all that reach it: set "+
			"DEBUG_TOKEN, or DEBUG_HOST=127.0.0.1", addr)
	}
}

// warnOpenRESP warns if other hosts can reach the RESP port without a password or a client certificate.
func (f *foundation) warnOpenRESP(resp *ports.Port) {
	if resp.Listener == nil || f.respPasswords != nil || resp.TLS.ClientCA != "" {
		return
	}
	if addr, ok := resp.Addr().(*net.TCPAddr); ok && !addr.IP.IsLoopback() {
		f.log.Warnf("the RESP port %v takes commands without a password from all that reach it: set RESP_PASSWORD, or "+
			"RESP_HOST=127.0.0.1", addr)
	}
}

// openPorts opens the ports that the settings ask for, as far as files and memory of the process suffice for their
// connections. The ports of callers refuse connections until OpenForCallers.
func (f *foundation) openPorts() (*portSet, error) {
	p := newPorts(f.Settings)
	if lowered := p.LowerConnCaps(ports.Process{
		OpenFiles: ports.OpenFiles(), StoreFiles: store.FilesNeeded(f.Settings), MemoryBytes: f.Settings.MemoryLimit,
	}); lowered != "" {
		logLoweredCaps(p, f.log.Logger, f.Settings.MaxConnsSet, lowered)
	}
	f.onClose(p.Close)
	f.Heap.AwaitRules()
	if err := p.Open(func(err error) { f.log.AlwaysShown.Error(err) }); err != nil {
		return nil, err
	}
	f.warnOpenDebug(p.Debug)
	f.warnOpenRESP(p.RESP)
	f.counters.ShowFigures("buffered", "", p.Budget)
	for _, p := range p.List {
		if l, ok := p.Listener.(*connlimit.Listener); ok {
			f.counters.ShowFigures("port", p.Name, l.Stats)
			f.warnings.WatchPort(p, l.Stats)
		}
	}
	return p, f.loadCertificates(p)
}

// logLoweredCaps logs that ports take fewer connections than the settings say. That is a
// warning if the environment sets them (configured) or no port takes many.
func logLoweredCaps(p *portSet, log *logrus.Logger, configured bool, lowered string) {
	level := logrus.InfoLevel
	if configured || max(p.HTTP.MaxConns, p.GRPC.MaxConns, p.Divvy.MaxConns, p.RESP.MaxConns) < ports.WarnBelowConns {
		level = logrus.WarnLevel
	}
	log.Log(level, lowered)
}
