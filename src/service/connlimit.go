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
	minPortConns  = 8        // the least that a port gets if there is little room
	lowConns      = 1000     // fewer are worth a warning, whatever the settings say
	connBytes     = 16 << 10 // of an idle connection: 9 KiB on an HTTP port, 21 KiB on the gRPC port

	pressureIdleTimeout = 10 * time.Second // replaces idleTimeout while an HTTP port is nearly full
	unreadTimeout       = 10 * time.Second // how long a client may leave unread what the kernel holds for it

	grpcGreetingWrites = 2 // writes before the first answer: HTTP/2 settings and their acknowledgement
	tlsGreetingWrites  = 3 // writes of a handshake
)

// resources bound what all connections may take.
type resources struct {
	files  int   // that the process may open; 0: not known
	memory int64 // GOMEMLIMIT in bytes; math.MaxInt64: none
}

// connRoom returns how many connections r has room for, and why no more. It reserves files
// for stores, rules and probes, and half of the memory.
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
	var asked []string // settings that are too high
	for i, p := range used {
		if len(asked) == 0 { // else it is the same for all further ports
			share = max(minPortConns, room/(len(used)-i))
		}
		if p.max > share {
			asked = append(asked, fmt.Sprintf("%s_MAX_CONNECTIONS=%d", strings.ToUpper(p.name), p.max))
			p.max = share
		}
		room -= p.max
	}
	if len(asked) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %s, so no port takes more than %d connections; raise that limit, or lower these settings", strings.Join(asked, ", "), why, share)
}

// logLoweredCaps warns that ports take fewer connections than the settings say. It only
// informs if the settings are defaults and a port still takes many.
func (p *ports) logLoweredCaps(log *logrus.Logger, set bool, lowered string) {
	level := logrus.InfoLevel
	if set || max(p.http.max, p.grpc.max, p.divvy.max) < lowConns {
		level = logrus.WarnLevel
	}
	log.Log(level, lowered)
}

// reservedFiles returns how many of openFiles are not for callers: connections to stores
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
