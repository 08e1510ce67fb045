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
	operatorConns = 256      // the most connections of each port for operators
	minPortConns  = 8        // of each port at least, even if there is room for fewer
	lowConns      = 1000     // if no port has as many, a warning is logged
	connBytes     = 16 << 10 // of an idle connection: 9 KiB on an HTTP port, 21 KiB on the gRPC port

	pressureIdleTimeout = 10 * time.Second // replaces idleTimeout while an HTTP port is nearly full
	unreadTimeout       = 10 * time.Second // a client that reads nothing of its answers for so long is disconnected

	grpcGreetingWrites = 2 // writes of the server before the first answer: HTTP/2 settings and their acknowledgement
	tlsGreetingWrites  = 3 // writes of the server in a TLS handshake
)

// resources are the limits of the process that bound its connections.
type resources struct {
	files  int   // how many the process may open; 0: not known
	memory int64 // GOMEMLIMIT in bytes; math.MaxInt64: none
}

// connRoom returns how many connections fit into r, and which limit is the reason. It reserves
// files for stores, rules and probes, and half of the memory.
func connRoom(cfg *settings.Settings, r resources) (room int, why string) {
	room = math.MaxInt32
	if r.files > 0 {
		reserved := reservedFiles(cfg, r.files)
		room = r.files - reserved
		why = fmt.Sprintf("the process may open %d files (`ulimit -n`), of which %d are kept for stores, rules and probes", r.files, reserved)
	}
	if n := r.memory / 2 / connBytes; n < int64(room) {
		room = int(n)
		why = fmt.Sprintf("GOMEMLIMIT is %d MiB, of which half is for connections, %d KiB for each", r.memory>>20, connBytes>>10)
	}
	return room, why
}

// fit sets the most connections of operators' ports, and lowers those of the other ports,
// the largest first, until r has room for all. It returns which settings it lowered, and
// why; "" if none.
func (p *ports) fit(cfg *settings.Settings, r resources) (lowered string) {
	room, why := connRoom(cfg, r)
	operators := min(operatorConns, max(minPortConns, room/32))
	p.debug.max, p.health.max, p.prometheus.max = operators, operators, operators
	room -= 3 * operators
	used := slices.DeleteFunc([]*port{p.http, p.grpc, p.divvy}, func(p *port) bool { return p.max == 0 })
	slices.SortStableFunc(used, func(a, b *port) int { return cmp.Compare(a.max, b.max) })
	share := 0
	var tooHigh []string // settings
	for i, p := range used {
		if len(tooHigh) == 0 { // else it is the same for all further ports
			share = max(minPortConns, room/(len(used)-i))
		}
		if p.max > share {
			tooHigh = append(tooHigh, fmt.Sprintf("%s_MAX_CONNECTIONS=%d", strings.ToUpper(p.name), p.max))
			p.max = share
		}
		room -= p.max
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
	if configured || max(p.http.max, p.grpc.max, p.divvy.max) < lowConns {
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
