package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/frontend/budget"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/settings"
)

// ports are the listeners, all bound before anything else starts, but for divvy's
// where that waits for rules. Nil: not asked for.
type ports struct {
	http, grpc, debug, health, prometheus, divvy net.Listener
}

// listen binds every port, or none. Connections of the HTTP ports count in held.
func listen(ctx context.Context, cfg *settings.Settings, caps connCaps, held *budget.Budget) (p ports, err error) {
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if !cfg.NoHTTP {
		if p.http, err = listenTCP(ctx, "http", "PORT", hostPort(cfg.Host, cfg.Port)); err != nil {
			return p, err
		}
		p.http = limited(p.http, caps.http, cfg.HTTPTLS.On, httpConns(held))
	}
	switch {
	case cfg.NoGRPC:
	case cfg.GRPCUDS != "":
		p.grpc, err = listenUnix(ctx, cfg.GRPCUDS)
	default:
		p.grpc, err = listenTCP(ctx, "grpc", "GRPC_PORT", hostPort(cfg.GRPCHost, cfg.GRPCPort))
	}
	if err != nil {
		return p, err
	}
	if p.grpc != nil {
		p.grpc = limited(p.grpc, caps.grpc, cfg.GRPCTLS.On, connlimit.Config{Greeting: grpcGreeting})
	}
	if !cfg.NoDebug {
		if p.debug, err = listenTCP(ctx, "debug", "DEBUG_PORT", hostPort(cfg.DebugHost, cfg.DebugPort)); err != nil {
			return p, err
		}
		p.debug = limited(p.debug, caps.operators, cfg.DebugTLS.On, httpConns(held))
	}
	if cfg.Health {
		if p.health, err = listenTCP(ctx, "health", "HEALTH_PORT", hostPort(cfg.HealthHost, cfg.HealthPort)); err != nil {
			return p, err
		}
		p.health = limited(p.health, caps.operators, false, httpConns(held))
	}
	switch own := cfg.StandIn; {
	case cfg.Sink == settings.SinkPrometheus:
		p.prometheus, err = listenTCP(ctx, "prometheus", "PROMETHEUS_ADDR", cfg.PrometheusAddr)
	case own != nil && own.HTTP:
		p.prometheus, err = listenTCP(ctx, "prometheus", "HTTP_SERVICE_PORT", hostPort("", own.HTTPPort))
	}
	if err != nil {
		return p, err
	}
	if p.prometheus != nil {
		p.prometheus = limited(p.prometheus, caps.operators, false, httpConns(held))
	}
	if cfg.Divvy.On {
		p.divvy, err = listenDivvy(ctx, cfg)
	}
	return p, err
}

func listenDivvy(ctx context.Context, cfg *settings.Settings) (net.Listener, error) {
	variable := "DIVVY_PORT"
	if cfg.StandIn != nil {
		variable = "PORT"
	}
	return listenTCP(ctx, "divvy", variable, hostPort(cfg.Divvy.Host, cfg.Divvy.Port))
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

func listenTCP(ctx context.Context, name, variable, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("the %s port %s is taken: stop what listens there, or set %s", name, addr, variable)
	case err != nil:
		return nil, fmt.Errorf("the %s port: %w", name, err)
	}
	return l, nil
}

// listenUnix listens on a socket file. One that a dead process left behind is
// replaced; one that somebody answers on is an error.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("GRPC_UDS: %s exists and is no socket: remove it, or name another path", path)
		}
		dialer := net.Dialer{Timeout: time.Second}
		conn, err := dialer.DialContext(ctx, "unix", path)
		if err == nil {
			_ = conn.Close() // it was only a question
		}
		if !errors.Is(err, syscall.ECONNREFUSED) { // also one too busy to answer is alive
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

// named are the listeners that there are, with their names.
func (p ports) named() []namedPort {
	var list []namedPort
	for _, n := range []namedPort{{"http", p.http}, {"grpc", p.grpc}, {"debug", p.debug}, {"health", p.health}, {"prometheus", p.prometheus}, {"divvy", p.divvy}} {
		if n.Listener != nil {
			list = append(list, n)
		}
	}
	return list
}

type namedPort struct {
	name string
	net.Listener
}

// close closes what its server has not closed yet.
func (p ports) close() {
	for _, n := range p.named() {
		_ = n.Close() // closed already, most of the time
	}
}

func (p ports) addresses() logrus.Fields {
	fields := make(logrus.Fields)
	for _, n := range p.named() {
		fields[n.name] = n.Addr().String()
	}
	return fields
}

func (p ports) announce(log *logrus.Logger) {
	for _, n := range p.named() {
		n.announce(log)
	}
}

func (n namedPort) announce(log *logrus.Logger) {
	log.WithFields(logrus.Fields{"port": n.name, "address": n.Addr().String()}).Info("listening")
}

// warnOpenDebug says once that strangers may reach the debug port.
func (s *server) warnOpenDebug() {
	if s.ports.debug == nil || s.cfg.DebugToken != "" || s.cfg.DebugTLS.ClientCA != "" {
		return
	}
	if addr, ok := s.ports.debug.Addr().(*net.TCPAddr); ok && !addr.IP.IsLoopback() {
		s.log.Warnf("the debug port %v shows rules, counters and profiles without a token to all that reach it: set DEBUG_TOKEN, or DEBUG_HOST=127.0.0.1", addr)
	}
}
