package service

import (
	"math"
	"strings"
	"testing"

	"ratelimit/src/service/ports"
	"ratelimit/src/settings"
)

// connCaps are the most connections of each port.
type connCaps struct{ http, grpc, divvy, operators int }

// With too few files or too little memory the caps are lowered, the largest first, and a
// warning has both numbers.
func TestConnCapsFitResources(t *testing.T) {
	cfg := func() *settings.Settings {
		return &settings.Settings{
			HTTPMaxConns: 10_000, GRPCMaxConns: 20_000,
			Divvy: settings.Divvy{OpensWhenNeeded: true, PipelinedPort: settings.PipelinedPort{MaxConns: 10_000}},
		}
	}
	whole := connCaps{http: 10_000, grpc: 20_000, divvy: 10_000, operators: 256}
	alone := cfg()
	alone.NoHTTP, alone.Divvy.OpensWhenNeeded = true, false
	few := cfg()
	few.HTTPMaxConns = 20
	const unbounded = math.MaxInt64
	process := func(files, storeFiles int, memoryBytes int64) ports.Process {
		return ports.Process{OpenFiles: files, StoreFiles: storeFiles, MemoryBytes: memoryBytes}
	}
	secure := cfg()
	secure.GRPCTLS.On = true
	for _, tt := range []struct {
		cfg     *settings.Settings
		have    ports.Process
		want    connCaps
		warning string // part of it; "": there is none
	}{
		{cfg(), process(0, 0, unbounded), whole, ""},
		{cfg(), process(1_048_576, 0, 4<<30), whole, ""},
		{
			cfg(), process(256, 0, unbounded),
			connCaps{50, 50, 50, 8},
			"HTTP_MAX_CONNECTIONS=10000, GRPC_MAX_CONNECTIONS=20000: the process may open 256 " +
				"files (`ulimit -n`), of which 80 are kept for stores, rules and probes, so no port takes more than 50 connections",
		},
		{
			cfg(), process(40_000, 0, unbounded),
			connCaps{10_000, 16_668, 10_000, 256},
			"GRPC_MAX_CONNECTIONS=20000: the process may open 40000 files (`ulimit -n`), of which 2564 are kept for stores, " +
				"rules and probes, so no port takes more than 16668 connections",
		},
		{
			cfg(), process(40_000, 0, 224<<20),
			connCaps{1732, 1732, 1732, 179},
			"GRPC_MAX_CONNECTIONS=20000: GOMEMLIMIT is 224 MiB, of which half is for connections, 20 KiB for each, so no port " +
				"takes more than 1732 connections",
		},
		{
			secure, process(40_000, 0, 224<<20),
			connCaps{962, 962, 962, 99},
			"half is for connections, 36 KiB for each with TLS, so no port takes more than 962 connections",
		},
		{cfg(), process(256, 20, unbounded), connCaps{44, 44, 44, 8}, "of which 100 are kept"},
		{alone, process(4096, 0, unbounded), connCaps{0, 3422, 0, 118}, "GRPC_MAX_CONNECTIONS=20000: the process"},
		{few, process(256, 0, unbounded), connCaps{20, 66, 66, 8}, "no port takes more than 66"},
		{cfg(), process(16, 0, 0), connCaps{8, 8, 8, 8}, "no port takes more than 8 connections"},
	} {
		p := newPorts(tt.cfg)
		warning := p.LowerConnCaps(tt.have)
		got := connCaps{p.HTTP.MaxConns, p.GRPC.MaxConns, p.Divvy.MaxConns, p.Debug.MaxConns}
		if got != tt.want || !strings.Contains(warning, tt.warning) || (warning == "") != (tt.warning == "") {
			t.Errorf("%+v: %+v, %q, want %+v, %q", tt.have, got, warning, tt.want, tt.warning)
		}
	}
}
