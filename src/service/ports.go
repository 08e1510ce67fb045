package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/files/certs"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/settings"
)

// ports are all ports that the service may have.
type ports struct {
	http, grpc, debug, health, prometheus, divvy *port

	budget *connlimit.Budget // bounds the bytes that connections of all ports hold together
}

// port is one address that the service listens on.
type port struct {
	name     string // in the log and in names of metrics
	on       bool   // the port opens at the start
	variable string // the setting to change if the address is taken
	addr     string // host:port
	socket   string // path of a unix socket instead of addr; empty: none
	max      int    // most connections; 0: the port is never opened, or fit sets it
	// conns bounds connections. Nil: the server of the port does so itself.
	conns *connlimit.Config

	tls         settings.ServerTLS
	tlsVariable string        // names the certificate in errors
	protocols   []string      // of TLS's ALPN
	certs       *certs.Server // nil: the port speaks plain text

	net.Listener // nil: not open
}

// newPorts returns the ports that the settings ask for, not open yet.
func newPorts(s *settings.Settings) *ports {
	budget := connlimit.NewBudget(s.MaxBuffered)
	web := &connlimit.Config{IdleUnderPressure: pressureIdleTimeout, Budget: budget}
	http1 := []string{"http/1.1"}
	p := &ports{
		budget: budget,
		http: &port{
			name: "http", on: !s.NoHTTP, variable: "PORT", addr: hostPort(s.Host, s.Port), max: s.HTTPMaxConns, conns: web,
			tls: s.HTTPTLS, tlsVariable: "HTTP_TLS_CERT", protocols: http1,
		},
		grpc: &port{
			name: "grpc", on: !s.NoGRPC, variable: "GRPC_PORT", addr: hostPort(s.GRPCHost, s.GRPCPort), socket: s.GRPCUDS,
			max: s.GRPCMaxConns, conns: &connlimit.Config{Greeting: grpcGreetingWrites},
			tls: s.GRPCTLS, tlsVariable: "GRPC_SERVER_TLS_CERT", protocols: []string{"h2"},
		},
		debug: &port{
			name: "debug", on: !s.NoDebug, variable: "DEBUG_PORT", addr: hostPort(s.DebugHost, s.DebugPort), conns: web,
			tls: s.DebugTLS, tlsVariable: "DEBUG_TLS_CERT", protocols: http1,
		},
		health:     &port{name: "health", on: s.Health, variable: "HEALTH_PORT", addr: hostPort(s.HealthHost, s.HealthPort), conns: web},
		prometheus: &port{name: "prometheus", on: s.Sink == settings.SinkPrometheus, variable: "PROMETHEUS_ADDR", addr: s.PrometheusAddr, conns: web},
		divvy:      &port{name: "divvy", on: s.Divvy.On, variable: "DIVVY_PORT", addr: hostPort(s.Divvy.Host, s.Divvy.Port)},
	}
	if s.Divvy.On || s.Divvy.WhenNeeded {
		p.divvy.max, p.divvy.tls, p.divvy.tlsVariable = s.Divvy.MaxConns, s.Divvy.TLS, "DIVVY_TLS_CERT"
	}
	if s.NoHTTP {
		p.http.max = 0
	}
	if s.NoGRPC {
		p.grpc.max = 0
	}
	if s.Sink == settings.SinkDivvy {
		p.divvy.variable = "PORT"
		p.prometheus.on, p.prometheus.variable, p.prometheus.addr = s.StandIn.HTTP, "HTTP_SERVICE_PORT", hostPort("", s.StandIn.HTTPPort)
	}
	return p
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// all lists the ports in the order in which they are opened.
func (p *ports) all() []*port {
	return []*port{p.http, p.grpc, p.debug, p.health, p.prometheus, p.divvy}
}

// open opens the ports that are on, until one fails; call close then.
func (p *ports) open() error {
	for _, p := range p.all() {
		if !p.on {
			continue
		}
		l, err := p.listen(context.Background())
		if err != nil {
			return err
		}
		p.Listener = l
	}
	return nil
}

// close closes all open ports. Servers have closed most of them before.
func (p *ports) close() {
	for _, p := range p.all() {
		if p.Listener != nil {
			_ = p.Close() // fails if its server has closed it
		}
	}
}

// addresses returns the addresses of the open ports by name.
func (p *ports) addresses() logrus.Fields {
	fields := make(logrus.Fields)
	for _, p := range p.all() {
		if p.Listener != nil {
			fields[p.name] = p.Addr().String()
		}
	}
	return fields
}

// listen opens the port and bounds its connections. It does not set p.Listener.
func (p *port) listen(ctx context.Context) (net.Listener, error) {
	var l net.Listener
	var err error
	if p.socket != "" {
		l, err = listenUnix(ctx, p.socket)
	} else {
		l, err = listenTCP(ctx, p)
	}
	if err != nil || p.conns == nil {
		return l, err
	}
	cfg := *p.conns
	cfg.Max, cfg.Unread = p.max, unreadTimeout
	if p.tls.On {
		cfg.Greeting += tlsGreetingWrites
	}
	return connlimit.New(l, cfg), nil
}

func listenTCP(ctx context.Context, p *port) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", p.addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("the %s port %s is taken: stop what listens there, or set %s", p.name, p.addr, p.variable)
	case err != nil:
		return nil, fmt.Errorf("the %s port: %w", p.name, err)
	}
	return l, nil
}

// listenUnix listens on a socket file. It replaces the file of a process that ended; a
// file on which a process answers is an error.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("GRPC_UDS: %s exists and is no socket: remove it, or name another path", path)
		}
		dialer := net.Dialer{Timeout: time.Second}
		conn, err := dialer.DialContext(ctx, "unix", path)
		if err == nil {
			_ = conn.Close() // only to learn whether a process listens
		}
		if !errors.Is(err, syscall.ECONNREFUSED) { // a process too busy to answer is alive, too
			return nil, fmt.Errorf("GRPC_UDS: %s is taken: stop what listens there, or name another path", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("GRPC_UDS: %w", err)
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("GRPC_UDS: %w", err)
	}
	return l, nil
}

// announceListening logs that port listens on addr.
func (l *logs) announceListening(port string, addr net.Addr) {
	l.announce.WithFields(logrus.Fields{"port": port, "address": addr.String()}).Info("listening")
}

// loadCertificates reads the certificates of the ports that speak TLS.
func (s *Service) loadCertificates() (err error) {
	for _, p := range s.ports.all() {
		if !p.tls.On {
			continue
		}
		p.certs, err = certs.New(certs.Config{
			Cert: p.tls.Cert, Key: p.tls.Key, ClientCA: p.tls.ClientCA, ClientName: p.tls.ClientName, Protocols: p.protocols,
			OnChange: func(err error) {
				if err != nil {
					s.log.Errorf("the %s port keeps its old certificates: %v", p.name, err)
				} else {
					s.log.Infof("the %s port has new certificates", p.name)
				}
			},
		})
		if err != nil {
			return fmt.Errorf("%s: %w", p.tlsVariable, err)
		}
		s.counters.Add(figures("certificate", p.name, p.certs.Stats))
		s.runs = append(s.runs, p.certs.Run)
	}
	return nil
}

// tlsConfig returns the TLS configuration of the port; nil: it speaks plain text.
func (p *port) tlsConfig() *tls.Config {
	if p.certs == nil {
		return nil
	}
	return p.certs.TLS()
}

// warnOpenDebug warns if other hosts can reach the debug port without a token or a
// client certificate.
func (s *Service) warnOpenDebug() {
	debug := s.ports.debug
	if debug.Listener == nil || s.Settings.DebugToken != "" || debug.tls.ClientCA != "" {
		return
	}
	if addr, ok := debug.Addr().(*net.TCPAddr); ok && !addr.IP.IsLoopback() {
		s.log.Warnf("the debug port %v shows rules, counters and profiles without a token to all that reach it: set DEBUG_TOKEN, or DEBUG_HOST=127.0.0.1", addr)
	}
}
