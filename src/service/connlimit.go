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
	// operatorConns is the most connections of each port for operators: debug, scrapes
	// and probes.
	operatorConns = 256
	// fewestConns is the least that a port gets if there is room for few.
	fewestConns = 8
	// fewConns is so few that it is worth a warning even if no setting asks for more.
	fewConns = 1000
	// connBytes is what an idle connection takes, on average over the ports: 9 KiB on
	// an HTTP port, 21 KiB on the gRPC port.
	connBytes = 16 << 10
	// pressureIdleTimeout replaces idleTimeout while an HTTP port is nearly full.
	pressureIdleTimeout = 10 * time.Second
	// unreadTimeout is how long a client may leave unread what the kernel has for it.
	unreadTimeout = 10 * time.Second
	// grpcGreeting and tlsGreeting are writes before the first answer: the settings of
	// HTTP/2 and their acknowledgement, and a handshake.
	grpcGreeting, tlsGreeting = 2, 3
)

// connCaps are the most connections of each port.
type connCaps struct{ http, grpc, divvy, operators int }

// resources bound what all connections may take.
type resources struct {
	files  int   // that the process may open; 0: not known
	memory int64 // GOMEMLIMIT in bytes; math.MaxInt64: none
}

// connRoom returns how many connections r has room for, and why no more. Files are
// left for stores, rules and probes, half of the memory for all else.
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

// fitConnCaps returns the caps that cfg asks for, 0 for ports that are off. If r has no
// room for as many, the largest caps are lowered until all fit, and lowered says so.
func fitConnCaps(cfg *settings.Settings, r resources) (caps connCaps, lowered string) {
	type port struct {
		name string
		most *int
	}
	var ports []port
	add := func(on bool, name string, most *int, asked int) {
		if on {
			*most = asked
			ports = append(ports, port{name, most})
		}
	}
	add(!cfg.NoHTTP, "HTTP_MAX_CONNECTIONS", &caps.http, cfg.HTTPMaxConns)
	add(!cfg.NoGRPC, "GRPC_MAX_CONNECTIONS", &caps.grpc, cfg.GRPCMaxConns)
	add(cfg.Divvy.On || cfg.Divvy.WhenNeeded, "DIVVY_MAX_CONNECTIONS", &caps.divvy, cfg.Divvy.MaxConns)
	slices.SortStableFunc(ports, func(a, b port) int { return cmp.Compare(*a.most, *b.most) })
	room, why := connRoom(cfg, r)
	caps.operators = min(operatorConns, max(fewestConns, room/32))
	room -= 3 * caps.operators // the debug port, scrapes and probes
	share := 0
	var asked []string // that is too much
	for i, p := range ports {
		if len(asked) == 0 { // else it is the same for all further ports
			share = max(fewestConns, room/(len(ports)-i))
		}
		if *p.most > share {
			asked = append(asked, fmt.Sprintf("%s=%d", p.name, *p.most))
			*p.most = share
		}
		room -= *p.most
	}
	if len(asked) == 0 {
		return caps, ""
	}
	return caps, fmt.Sprintf("%s: %s, so no port takes more than %d connections; raise that limit, or lower these settings", strings.Join(asked, ", "), why, share)
}

// connCaps returns the most connections of each port, and logs if they are lower than the
// settings.
func (s *Service) connCaps() connCaps {
	caps, lowered := fitConnCaps(s.Settings, resources{openFiles(), s.Settings.MemoryLimit})
	if lowered != "" {
		logLoweredCaps(s.log.Logger, s.Settings, caps, lowered)
	}
	return caps
}

// logLoweredCaps warns that caps are lower than the settings. It only informs if the
// settings are defaults and a port still takes many connections.
func logLoweredCaps(log *logrus.Logger, cfg *settings.Settings, caps connCaps, lowered string) {
	level := logrus.InfoLevel
	if cfg.MaxConnsSet || max(caps.http, caps.grpc, caps.divvy) < fewConns {
		level = logrus.WarnLevel
	}
	log.Log(level, lowered)
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
