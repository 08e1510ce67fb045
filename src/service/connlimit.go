package service

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/settings"
)

const (
	operatorConns  = 256      // operatorConns bounds the connections of each port for operators.
	minPortConns   = 8        // minPortConns holds even if memory or open files suffice for fewer connections.
	warnBelowConns = 1000     // warnBelowConns: a warning is logged if no port takes as many connections.
	idleConnBytes  = 16 << 10 // idleConnBytes is about what an idle connection needs: 9 KiB on the gRPC port.
	idleTLSBytes   = 32 << 10 // idleTLSBytes is the same with TLS: 23 KiB on the gRPC port, 26 KiB with a client certificate.

	pressureIdleTimeout = 10 * time.Second // pressureIdleTimeout replaces idleTimeout while an HTTP port is nearly full.
	unreadAnswerTimeout = 10 * time.Second // unreadAnswerTimeout ends the connection of a client that does not read its answers.

	grpcHandshakeWrites = 2 // grpcHandshakeWrites are HTTP/2 settings and an acknowledgement before the first answer.
	tlsHandshakeWrites  = 3 // tlsHandshakeWrites counts the writes of the server in a TLS handshake.
)

// processLimits are the limits of the process that bound its connections.
type processLimits struct {
	openFiles   int   // openFiles is 0 if the limit is not known.
	memoryBytes int64 // memoryBytes is GOMEMLIMIT, or math.MaxInt64 without a limit.
}

// affordableConns returns how many connections fit into r, and which limit is the reason. It reserves
// files for stores, rules and probes, and half of the memory.
func affordableConns(cfg *settings.Settings, r processLimits) (room int, why string) {
	room = math.MaxInt32
	if r.openFiles > 0 {
		reserved := reservedFiles(cfg, r.openFiles)
		room = r.openFiles - reserved
		why = fmt.Sprintf("the process may open %d files (`ulimit -n`), of which %d are kept for stores, rules and probes", r.openFiles, reserved)
	}
	each, with := int64(idleConnBytes), ""
	if cfg.HTTPTLS.On || cfg.GRPCTLS.On || cfg.Divvy.TLS.On || cfg.RESP.TLS.On { // Callers choose which ports they fill.
		each, with = idleTLSBytes, " with TLS"
	}
	if n := r.memoryBytes / 2 / each; n < int64(room) {
		room = int(n)
		why = fmt.Sprintf("GOMEMLIMIT is %d MiB, of which half is for connections, %d KiB for each%s", r.memoryBytes>>20, each>>10, with)
	}
	return room, why
}

// lowerConnCaps sets the most connections of operators' ports, and lowers those of the other ports, the largest first, until r
// has room for all. It returns which settings it lowered, and why; "" if none.
func (p *ports) lowerConnCaps(cfg *settings.Settings, r processLimits) (lowered string) {
	room, why := affordableConns(cfg, r)
	operators := min(operatorConns, max(minPortConns, room/32))
	p.debug.maxConns, p.health.maxConns, p.prometheus.maxConns = operators, operators, operators
	room -= 3 * operators
	used := slices.DeleteFunc([]*port{p.http, p.grpc, p.divvy, p.resp}, func(p *port) bool { return p.maxConns == 0 })
	slices.SortStableFunc(used, func(a, b *port) int { return cmp.Compare(a.maxConns, b.maxConns) })
	share := 0
	var tooHigh []string
	for i, p := range used {
		if len(tooHigh) == 0 { // After the first port that asks for too much, the share stays the same.
			share = max(minPortConns, room/(len(used)-i))
		}
		if p.maxConns > share {
			tooHigh = append(tooHigh, fmt.Sprintf("%s_MAX_CONNECTIONS=%d", strings.ToUpper(p.name), p.maxConns))
			p.maxConns = share
		}
		room -= p.maxConns
	}
	if len(tooHigh) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %s, so no port takes more than %d connections; raise that limit, or lower these settings", strings.Join(tooHigh, ", "), why, share)
}

// logLoweredCaps logs that ports take fewer connections than the settings say. That is a
// warning if the environment sets them (configured) or no port takes many.
func (p *ports) logLoweredCaps(log *logrus.Logger, configured bool, lowered string) {
	level := logrus.InfoLevel
	if configured || max(p.http.maxConns, p.grpc.maxConns, p.divvy.maxConns, p.resp.maxConns) < warnBelowConns {
		level = logrus.WarnLevel
	}
	log.Log(level, lowered)
}

// reservedFiles returns how many of openFiles are kept from callers, for connections to stores
// and sinks, rule files, certificates, listeners and Go's own files.
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
