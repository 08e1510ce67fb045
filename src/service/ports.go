package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/files/certs"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/settings"
)

type ports struct {
	http, grpc, debug, health, prometheus, divvy, resp *port

	budget *connlimit.MemoryBudget // budget bounds the bytes that connections of all ports hold together.
}

// port is one address that the service listens on.
type port struct {
	name         string // name is in the log and in the names of metrics.
	opensAtStart bool
	awaitsRules  bool   // awaitsRules says that a port that opens at the start lets clients connect when rules are in force, and not before.
	addrVariable string // addrVariable is the setting to change if the address is taken.
	addr         string // addr is host:port.
	// isOptional is set if the service runs without the port when its address cannot be used, as envoyproxy/ratelimit does. A taken
	// address is an error for all ports.
	isOptional bool
	socket     string // socket is the path of a unix socket, which replaces addr if it is set.
	maxConns   int    // maxConns is 0 for a port that is never opened.
	// connLimits bounds connections. Nil: the server of the port does so itself.
	connLimits *connlimit.Config

	tls         settings.ServerTLS
	tlsVariable string      // tlsVariable is the setting of the certificate, for errors.
	alpn        []string    // alpn lists the protocols that TLS negotiates.
	tlsConfig   *tls.Config // nil if the port speaks plain text.

	net.Listener               // nil if the port is not open.
	late         *lateListener // late is what Listener wraps if the port awaits rules, else nil.
}

// newPorts returns the ports that the settings ask for, not open yet.
func newPorts(s *settings.Settings) *ports {
	budget := connlimit.NewMemoryBudget(s.MaxBuffered)
	web := &connlimit.Config{MaxIdleUnderPressure: pressureIdleTimeout, MemoryBudget: budget}
	http1 := []string{"http/1.1"}
	p := &ports{
		budget: budget,
		http: &port{
			name: "http", opensAtStart: !s.NoHTTP, addrVariable: "PORT", addr: hostPort(s.Host, s.Port), maxConns: s.HTTPMaxConns, connLimits: web,
			tls: s.HTTPTLS, tlsVariable: "HTTP_TLS_CERT", alpn: http1,
		},
		grpc: &port{
			name: "grpc", opensAtStart: !s.NoGRPC, awaitsRules: true, addrVariable: "GRPC_PORT", addr: hostPort(s.GRPCHost, s.GRPCPort), socket: s.GRPCUDS,
			maxConns: s.GRPCMaxConns, connLimits: &connlimit.Config{GreetingWrites: grpcHandshakeWrites},
			tls: s.GRPCTLS, tlsVariable: "GRPC_SERVER_TLS_CERT", alpn: []string{"h2"},
		},
		debug: &port{
			name: "debug", opensAtStart: !s.NoDebug, isOptional: true, addrVariable: "DEBUG_PORT", addr: hostPort(s.DebugHost, s.DebugPort), connLimits: web,
			tls: s.DebugTLS, tlsVariable: "DEBUG_TLS_CERT", alpn: http1,
		},
		health: &port{name: "health", opensAtStart: s.Health, addrVariable: "HEALTH_PORT", addr: hostPort(s.HealthHost, s.HealthPort), connLimits: web},
		prometheus: &port{
			name: "prometheus", opensAtStart: s.Sink == settings.SinkPrometheus, isOptional: true, addrVariable: "PROMETHEUS_ADDR",
			addr: s.PrometheusAddr, connLimits: web,
		},
		divvy: &port{name: "divvy", opensAtStart: s.Divvy.OpensAtStart, awaitsRules: true, addrVariable: "DIVVY_PORT", addr: hostPort(s.Divvy.Host, s.Divvy.Port)},
	}
	p.resp = &port{name: "resp", opensAtStart: s.RESP.Enabled, awaitsRules: true, addrVariable: "RESP_PORT", addr: hostPort(s.RESP.Host, s.RESP.Port)}
	if s.RESP.Enabled {
		p.resp.maxConns, p.resp.tls, p.resp.tlsVariable = s.RESP.MaxConns, s.RESP.TLS, "RESP_TLS_CERT"
	}
	if s.Divvy.OpensAtStart || s.Divvy.OpensWhenNeeded {
		p.divvy.maxConns, p.divvy.tls, p.divvy.tlsVariable = s.Divvy.MaxConns, s.Divvy.TLS, "DIVVY_TLS_CERT"
	}
	if s.NoHTTP {
		p.http.maxConns = 0
	}
	if s.NoGRPC {
		p.grpc.maxConns = 0
	}
	if s.Sink == settings.SinkDivvy {
		p.divvy.addrVariable, p.prometheus.isOptional = "PORT", false
		p.prometheus.opensAtStart, p.prometheus.addrVariable, p.prometheus.addr = s.DivvyVariables.HTTP, "HTTP_SERVICE_PORT", hostPort("", s.DivvyVariables.HTTPPort)
	}
	return p
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// all lists the ports in the order in which they are opened.
func (p *ports) all() []*port {
	return []*port{p.http, p.grpc, p.debug, p.health, p.prometheus, p.divvy, p.resp}
}

func (p *ports) opened() []*port {
	return slices.DeleteFunc(p.all(), func(p *port) bool { return p.Listener == nil })
}

// open opens the ports that are on, until one fails; call close then. It calls onMissing for an optional port that cannot be opened.
// Ports that await rules get their address, and clients cannot connect to them before openForCallers.
func (p *ports) open(onMissing func(error)) error {
	for _, p := range p.all() {
		if !p.opensAtStart {
			continue
		}
		l, err := p.listen(context.Background())
		switch {
		case err == nil:
			p.Listener = l
		case p.isOptional && !errors.Is(err, syscall.EADDRINUSE):
			variables := p.addrVariable
			if name, isPort := strings.CutSuffix(variables, "_PORT"); isPort {
				variables = name + "_HOST or " + variables
			}
			onMissing(fmt.Errorf("%w; the service runs without that port: correct %s", err, variables))
		default:
			return err
		}
	}
	return nil
}

// openForCallers lets clients connect to the ports that await rules, and returns those that were not open before.
func (p *ports) openForCallers() (opened []*port, _ error) {
	for _, p := range p.opened() {
		if p.late == nil {
			continue
		}
		isNew, err := p.late.open()
		if err != nil {
			return nil, p.explainError(err)
		}
		if isNew {
			opened = append(opened, p)
		}
	}
	return opened, nil
}

// close closes all open ports. Servers have closed most of them before.
func (p *ports) close() error {
	for _, p := range p.opened() {
		_ = p.Close() // Close fails if the server of the port has closed it already.
	}
	return nil
}

func (p *ports) addresses() logrus.Fields {
	fields := make(logrus.Fields)
	for _, p := range p.opened() {
		fields[p.name] = p.Addr().String()
	}
	return fields
}

// listen opens the port and bounds its connections. It does not set p.Listener.
func (p *port) listen(ctx context.Context) (net.Listener, error) {
	l, err := p.bind(ctx)
	switch {
	case err != nil:
		return nil, p.explainError(err)
	case p.connLimits == nil:
		return l, nil
	}
	cfg := *p.connLimits
	cfg.MaxConnections, cfg.UnreadTimeout = p.maxConns, unreadAnswerTimeout
	if p.tls.On {
		cfg.GreetingWrites += tlsHandshakeWrites
	}
	return connlimit.New(l, cfg), nil
}

// bind takes the address of the port, and sets p.late if the port awaits rules.
func (p *port) bind(ctx context.Context) (net.Listener, error) {
	switch {
	case p.socket != "":
		if err := removeUnusedSocket(ctx, p.socket); err != nil {
			return nil, err
		}
		p.late = newLateListener(lateUnixSocket{p.socket})
	case p.opensAtStart && p.awaitsRules:
		socket, err := bindTCP(p.addr)
		if err != nil {
			return nil, err
		}
		p.late = newLateListener(socket)
	default:
		return new(net.ListenConfig).Listen(ctx, "tcp", p.addr)
	}
	return p.late, nil
}

// explainError returns the error for a port that cannot be opened because of err.
func (p *port) explainError(err error) error {
	switch {
	case p.socket != "":
		return fmt.Errorf("GRPC_UDS: %w", err)
	case errors.Is(err, syscall.EADDRINUSE):
		return takenError{fmt.Sprintf("the %s port %s is taken: stop what listens there, or set %s", p.name, p.addr, p.addrVariable)}
	default:
		return fmt.Errorf("the %s port: %w", p.name, err)
	}
}

// listenUnix listens on the unix socket path. It replaces the socket of a process that ended.
func listenUnix(path string) (net.Listener, error) {
	if err := removeUnusedSocket(context.Background(), path); err != nil {
		return nil, err
	}
	return new(net.ListenConfig).Listen(context.Background(), "unix", path)
}

// takenError is an EADDRINUSE with a better text.
type takenError struct{ text string }

func (e takenError) Error() string { return e.text }

func (takenError) Unwrap() error { return syscall.EADDRINUSE }

// removeUnusedSocket removes the socket file of a process that ended. A file on which a process answers is an error.
func removeUnusedSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil // Listening creates the file, or returns the error.
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is no socket: remove it, or name another path", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close() // A connection that opens shows that a process listens on the socket.
	}
	if !errors.Is(err, syscall.ECONNREFUSED) { // A process that is too busy to answer still owns the socket.
		return fmt.Errorf("%s is taken: stop what listens there, or name another path", path)
	}
	return os.Remove(path)
}

func (l *logs) logListening(port string, addr net.Addr) {
	l.alwaysShown.WithFields(logrus.Fields{"port": port, "address": addr.String()}).Info("listening")
}

// loadCertificates reads the certificates of the ports that speak TLS.
func (f *foundation) loadCertificates(ports *ports) error {
	for _, p := range ports.all() {
		if !p.tls.On {
			continue
		}
		server, err := certs.New(certs.Config{
			Cert: p.tls.Cert, Key: p.tls.Key, ClientCA: p.tls.ClientCA, ClientName: p.tls.ClientName, Protocols: p.alpn,
			OnChange: func(err error) {
				if err != nil {
					f.log.Errorf("the %s port keeps its old certificates: %v", p.name, err)
				} else {
					f.log.Infof("the %s port has new certificates", p.name)
				}
			},
		})
		if err != nil {
			return fmt.Errorf("%s: %w", p.tlsVariable, err)
		}
		p.tlsConfig = server.TLS()
		f.counters.ShowFigures("certificate", p.name, server.Stats)
		f.run(server.Run)
	}
	return nil
}

// warnOpenDebug warns if other hosts can reach the debug port without a token or a client certificate.
func (f *foundation) warnOpenDebug(debug *port) {
	if debug.Listener == nil || f.Settings.DebugToken != "" || debug.tls.ClientCA != "" {
		return
	}
	if addr, ok := debug.Addr().(*net.TCPAddr); ok && !addr.IP.IsLoopback() {
		f.log.Warnf("the debug port %v shows rules, counters and profiles without a token to all that reach it: set DEBUG_TOKEN, or DEBUG_HOST=127.0.0.1", addr)
	}
}

// openPorts opens the ports that the settings ask for, as far as files and memory of the process suffice for their connections. The ports
// of callers refuse connections until openForCallers.
func (f *foundation) openPorts() (*ports, error) {
	p := newPorts(f.Settings)
	if lowered := p.lowerConnCaps(f.Settings, processLimits{openFiles(), f.Settings.MemoryLimit}); lowered != "" {
		p.logLoweredCaps(f.log.Logger, f.Settings.MaxConnsSet, lowered)
	}
	f.onClose(p.close)
	f.Heap.AwaitRules()
	if err := p.open(func(err error) { f.log.alwaysShown.Error(err) }); err != nil {
		return nil, err
	}
	f.warnOpenDebug(p.debug)
	f.counters.ShowFigures("buffered", "", p.budget)
	for _, p := range p.all() {
		if l, ok := p.Listener.(*connlimit.Listener); ok {
			f.counters.ShowFigures("port", p.name, l.Stats)
		}
	}
	return p, f.loadCertificates(p)
}
