package main

import (
	"fmt"
	"net"
	"strings"
	"time"

	"ratelimit/src/budget"
	"ratelimit/src/connlimit"
	"ratelimit/src/metrics"
	"ratelimit/src/settings"
)

const (
	// operatorConns is the most connections of each port for operators: debug, scrapes
	// and probes.
	operatorConns = 256
	// fewestConns is the least that a port gets if file descriptors are few.
	fewestConns = 8
	// pressureIdleTimeout replaces idleTimeout while an HTTP port is nearly full.
	pressureIdleTimeout = 10 * time.Second
	// grpcGreeting and tlsGreeting are writes before the first answer: the settings of
	// HTTP/2 and their acknowledgement, and a handshake.
	grpcGreeting, tlsGreeting = 2, 3
)

// connCaps are the most connections of each port.
type connCaps struct{ http, grpc, divvy, operators int }

// fitConnCaps returns the caps that cfg asks for, or smaller ones in proportion if
// the process may open no more than openFiles files (0: no limit), and then a
// warning. Files are left for stores, rules and probes.
func fitConnCaps(cfg *settings.Settings, openFiles int) (caps connCaps, warning string) {
	caps = connCaps{operators: operatorConns}
	total := 0
	var asked, given []string
	var scale []*int
	port := func(on bool, to *int, name string, n int) {
		if !on {
			return
		}
		*to = n
		total += n
		asked = append(asked, fmt.Sprintf("%s=%d", name, n))
		scale = append(scale, to)
	}
	port(!cfg.NoHTTP, &caps.http, "HTTP_MAX_CONNECTIONS", cfg.HTTPMaxConns)
	port(!cfg.NoGRPC, &caps.grpc, "GRPC_MAX_CONNECTIONS", cfg.GRPCMaxConns)
	port(cfg.Divvy.On || cfg.Divvy.WhenNeeded, &caps.divvy, "DIVVY_MAX_CONNECTIONS", cfg.Divvy.MaxConns)
	total += 3 * operatorConns
	reserved := reservedFiles(cfg, openFiles)
	room := openFiles - reserved
	if openFiles == 0 || total <= room {
		return caps, ""
	}
	for _, to := range append(scale, &caps.operators) {
		*to = min(*to, max(fewestConns, *to*room/total))
	}
	for _, to := range scale {
		given = append(given, fmt.Sprint(*to))
	}
	return caps, fmt.Sprintf("the process may open %d files, of which %d are kept for stores, rules and probes: instead of %s the ports take %s connections; raise the limit (`ulimit -n`, LimitNOFILE=) or lower these settings",
		openFiles, reserved, strings.Join(asked, ", "), strings.Join(given, ", "))
}

// reservedFiles is how many of openFiles are not for callers: connections to stores
// and sinks, rule files, certificates, listeners, and what Go itself needs.
func reservedFiles(cfg *settings.Settings, openFiles int) int {
	n := 64 + openFiles/16
	switch cfg.BackendType {
	case "redis":
		n += cfg.Redis.PoolSize * len(cfg.Redis.Addrs)
		if cfg.RedisSplit {
			n += cfg.RedisPerSecond.PoolSize * len(cfg.RedisPerSecond.Addrs)
		}
	case "memcache":
		n += cfg.Memcache.Conns * len(cfg.Memcache.Servers)
	}
	return min(n, openFiles*3/4)
}

// limited returns the listener that holds the HTTP or gRPC port l to its cap.
func limited(l net.Listener, most int, tls bool, cfg connlimit.Config) net.Listener {
	cfg.Max = most
	if tls {
		cfg.Greeting += tlsGreeting
	}
	return connlimit.New(l, cfg)
}

// httpConns is what connections of an HTTP port may do.
func httpConns(held *budget.Budget) connlimit.Config {
	return connlimit.Config{IdleUnderPressure: pressureIdleTimeout, Budget: held}
}

// connStats are the figures of the connections of a port.
func connStats(port string, st connlimit.Stats, add func(metrics.Stat)) {
	prefix := "ratelimit." + port + ".cx_"
	add(metrics.Stat{Name: prefix + "active", Kind: metrics.KindGauge, Value: st.Open})
	for name, n := range map[string]int64{
		"total": st.Accepted, "refused": st.Refused, "evicted": st.Evicted, "idle_closed": st.Expired, "over_budget": st.OverBudget,
	} {
		add(metrics.Stat{Name: prefix + name, Kind: metrics.KindCounter, Value: n})
	}
}

// stats are the figures of the ports. Divvy's has its own.
func (p ports) stats(add func(metrics.Stat)) {
	for _, n := range p.named() {
		if l, ok := n.Listener.(*connlimit.Listener); ok {
			connStats(n.name, l.Stats(), add)
		}
	}
}
