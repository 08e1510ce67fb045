package integration

import (
	"bytes"
	"context"
	"encoding/csv"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/measured"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

var writePeers = flag.Bool("write-peers", false, "BenchmarkBesidePeers writes its tables into docs/performance.md")

// peer is a server that limits rates, and how it is asked. A command or message is asked about 100,000 keys; the other
// one is always refused.
type peer struct {
	name             string
	cpu              func() (time.Duration, error)
	addr             string
	command, refused string                  // for redis-benchmark.
	method           string                  // of gRPC.
	message          func(key string) []byte // of gRPC; the key "refused" is refused.
}

// BenchmarkBesidePeers compares what a command over RESP and a call over gRPC cost this service, with counters in
// memory, with what they cost other servers. The servers take turns, so that other work on the machine slows all.
// Servers that this machine lacks are left out.
func BenchmarkBesidePeers(b *testing.B) {
	resp, calls, versions := startPeers(b)
	var tables []string
	for _, protocol := range []struct {
		head  []string
		peers []peer
		ask   func(testing.TB, *peer, int, bool) peerCost
	}{
		{[]string{"RESP, pipelined", "asks"}, resp, askRESP},
		{[]string{"gRPC, in flight", "asks"}, calls, askGRPC},
	} {
		rows := [][]string{protocol.head}
		for _, p := range protocol.peers {
			rows[0] = append(rows[0], p.name)
		}
		for _, refused := range []bool{false, true} {
			for _, together := range []int{1, 16, 64} {
				rows = append(rows, peerRow(b, protocol.peers, together, refused, protocol.ask))
			}
		}
		tables = append(tables, measured.Markdown(rows))
	}
	text := fmt.Sprintf("%s\n\n%s\n\n%s, on %s.\n", tables[0], tables[1], strings.Join(versions, ", "),
		time.Now().UTC().Format(time.DateOnly))
	fmt.Printf("\n%s", text)
	if *writePeers {
		writePeerTables(b, text)
	}
}

// peerRow measures a case, and returns its cells: of each server the CPU time as a multiple of that of the first one,
// and p50 and p99 in milliseconds. All are medians of the rounds.
func peerRow(b *testing.B, peers []peer, together int, refused bool, ask func(testing.TB, *peer, int, bool) peerCost,
) []string {
	asks := map[bool]string{false: "100,000 keys", true: "one that is refused"}[refused]
	row := []string{fmt.Sprint(together), asks}
	b.Run(fmt.Sprintf("%s together=%d refused=%t", peers[len(peers)-1].name, together, refused), func(b *testing.B) {
		ratios, p50s, p99s := make([][]float64, len(peers)), make([][]float64, len(peers)), make([][]float64, len(peers))
		for b.Loop() {
			var first float64
			for i := range peers {
				c := ask(b, &peers[i], together, refused)
				if i == 0 {
					first = c.cpuMicros
				}
				ratios[i], p50s[i], p99s[i] = append(ratios[i], c.cpuMicros/first), append(p50s[i], c.p50), append(p99s[i], c.p99)
			}
		}
		row = row[:2]
		for i := range peers {
			row = append(row, fmt.Sprintf("%.2f, %.2f / %.2f ms", median(ratios[i]), median(p50s[i]), median(p99s[i])))
			b.ReportMetric(median(ratios[i]), strings.ReplaceAll(peers[i].name, " ", "-")+"-ratio")
		}
	})
	return row
}

func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}

// peerCost is the CPU time of a command or call, and durations in milliseconds.
type peerCost struct{ cpuMicros, p50, p99 float64 }

// askRESP sends commands on 50 connections with redis-benchmark.
func askRESP(tb testing.TB, p *peer, pipelined int, refused bool) (c peerCost) {
	tb.Helper()
	n := 100_000 * min(pipelined, 4)
	command := p.command
	if refused {
		command = p.refused
	}
	_, port, err := net.SplitHostPort(p.addr)
	if err != nil {
		tb.Fatal(err)
	}
	args := []string{"-p", port, "-c", "50", "-P", strconv.Itoa(pipelined), "-n", strconv.Itoa(n), "-r", "100000", "--csv"}
	before := cpuOf(tb, p)
	out, err := exec.Command("redis-benchmark", append(args, strings.Fields(command)...)...).Output()
	c.cpuMicros = float64((cpuOf(tb, p) - before).Microseconds()) / float64(n)
	rows, csvErr := csv.NewReader(bytes.NewReader(out)).ReadAll()
	if err != nil || csvErr != nil || len(rows) != 2 {
		tb.Fatalf("%s: redis-benchmark %v: %v, %v\n%s", p.name, args, err, csvErr, out)
	}
	for i, name := range rows[0] {
		value, _ := strconv.ParseFloat(rows[1][i], 64) // The first cell is the command.
		switch name {
		case "p50_latency_ms":
			c.p50 = value
		case "p99_latency_ms":
			c.p99 = value
		}
	}
	return c
}

// askGRPC sends calls on one connection for a second.
func askGRPC(tb testing.TB, p *peer, inFlight int, refused bool) (c peerCost) {
	tb.Helper()
	conn, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // Nothing is on its way.
	messages := [][]byte{p.message("refused")}
	if !refused {
		messages = make([][]byte, 0, 100_000)
		for i := range cap(messages) {
			messages = append(messages, p.message(strconv.Itoa(i)))
		}
	}
	var next atomic.Uint64
	var mu sync.Mutex
	var took []float64
	ctx, cancel := context.WithTimeout(tb.Context(), 10*time.Second)
	defer cancel()
	send := func() {
		i := next.Add(1) * 7919 % uint64(len(messages))
		if err := conn.Invoke(ctx, p.method, &messages[i], new([]byte)); err != nil {
			tb.Errorf("%s: %v", p.name, err)
		}
	}
	send()
	before, end := cpuOf(tb, p), time.Now().Add(time.Second)
	var callers sync.WaitGroup
	for range inFlight {
		callers.Go(func() {
			var mine []float64
			for start := time.Now(); start.Before(end) && !tb.Failed(); {
				send()
				now := time.Now()
				mine = append(mine, now.Sub(start).Seconds()*1000)
				start = now
			}
			mu.Lock()
			took = append(took, mine...)
			mu.Unlock()
		})
	}
	callers.Wait()
	if tb.Failed() || len(took) == 0 {
		tb.FailNow()
	}
	slices.Sort(took)
	return peerCost{
		float64((cpuOf(tb, p) - before).Microseconds()) / float64(len(took)), took[len(took)/2], took[len(took)*99/100],
	}
}

func cpuOf(tb testing.TB, p *peer) time.Duration {
	tb.Helper()
	d, err := p.cpu()
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// rawCodec passes messages as bytes.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = slices.Clone(data); return nil }
func (rawCodec) Name() string                       { return "proto" }

// startPeers starts this service and its peers, and returns those with RESP, of which redis-server is the first, those
// with gRPC, of which this service is the first, and what was started.
func startPeers(b *testing.B) (resp, calls []peer, versions []string) {
	redis := redistest.Start(b, redistest.Options{})
	service := harness.NewService(b, "RESP_HOST=127.0.0.1", "RESP_PORT=0")
	service.WriteRules(b, "rules.yaml", `domain: api
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 1000000000}
- {key: user, value: refused, rate_limit: {unit: hour, requests_per_unit: 1}}
`)
	service.Start(b, "resp", "grpc")
	harness.Until(b, "the service answers", func() bool {
		_, port, _ := net.SplitHostPort(service.Addrs["resp"])
		out, _ := exec.Command("redis-cli", "-p", port, "RATELIMIT", "api", "user", "x").Output()
		return strings.HasPrefix(string(out), "0\n")
	})
	resp = []peer{
		{
			name: "redis-server `INCR`", cpu: func() (time.Duration, error) { return redis.CPU(), nil }, addr: redis.Addr,
			command: "INCR key:__rand_int__", refused: "INCR refused",
		},
		{
			name: "`RATELIMIT`", cpu: service.CPU, addr: service.Addrs["resp"], command: "RATELIMIT api user __rand_int__",
			refused: "RATELIMIT api user refused",
		},
		{
			name: "`CL.THROTTLE`", cpu: service.CPU, addr: service.Addrs["resp"],
			command: "CL.THROTTLE key:__rand_int__ 1000000 1000000 60", refused: "CL.THROTTLE refused 0 1 86400",
		},
	}
	calls = []peer{{
		name: "this service", cpu: service.CPU, addr: service.Addrs["grpc"],
		method: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
		message: func(key string) []byte {
			entry := appendText(appendText(nil, 1, "user"), 2, key)
			return appendText(appendText(nil, 1, "api"), 2, string(appendText(nil, 1, string(entry))))
		},
	}}
	versions = []string{"redis-server " + versionOf("redis-server", "--version")}
	if path := peerProgram(b, "throttlecrab-server", "cargo install throttlecrab-server, which needs protoc"); path != "" {
		tcp, rpc := startPeer(b, path, func(resp, grpc string) ([]string, []string) {
			return []string{
				"--redis", "--redis-host", "127.0.0.1", "--redis-port", resp,
				"--grpc", "--grpc-host", "127.0.0.1", "--grpc-port", grpc, "--log-level", "error",
			}, nil
		})
		tcp.name, rpc.name = "throttlecrab `THROTTLE`", "throttlecrab"
		tcp.command, tcp.refused = "THROTTLE key:__rand_int__ 1000000 1000000 60", "THROTTLE refused 1 1 86400"
		rpc.method, rpc.message = "/throttlecrab.RateLimiter/Throttle", func(key string) []byte {
			most := uint64(1_000_000)
			if key == "refused" {
				most = 1
			}
			return appendNumbers(appendText(nil, 1, key), 2, most, most, 86400, 1)
		}
		resp, calls = append(resp, tcp), append(calls, rpc)
		versions = append(versions, versionOf(path, "--version"))
	}
	path := peerProgram(b, "gubernator", "go install github.com/gubernator-io/gubernator/v2/cmd/gubernator@v2.21.0")
	if path != "" {
		_, rpc := startPeer(b, path, func(web, grpc string) ([]string, []string) {
			gossip, err := harness.FreePort()
			if err != nil {
				b.Fatal(err)
			}
			return nil, []string{
				"GUBER_GRPC_ADDRESS=127.0.0.1:" + grpc, "GUBER_HTTP_ADDRESS=127.0.0.1:" + web,
				"GUBER_ADVERTISE_ADDRESS=127.0.0.1:" + grpc, "GUBER_PEER_DISCOVERY_TYPE=member-list",
				fmt.Sprintf("GUBER_MEMBERLIST_ADDRESS=127.0.0.1:%d", gossip),
				fmt.Sprintf("GUBER_MEMBERLIST_BIND_ADDRESS=127.0.0.1:%d", gossip),
				fmt.Sprintf("GUBER_MEMBERLIST_KNOWN_NODES=127.0.0.1:%d", gossip), "GUBER_LOG_LEVEL=error",
				"GUBER_CACHE_SIZE=200000",
			}
		})
		rpc.name, rpc.method = "gubernator", "/pb.gubernator.V1/GetRateLimits"
		rpc.message = func(key string) []byte {
			most := uint64(1_000_000)
			if key == "refused" {
				most = 1
			}
			request := appendNumbers(appendText(appendText(nil, 1, "user"), 2, key), 3, 1, most, 3_600_000)
			return appendText(nil, 1, string(request))
		}
		calls, versions = append(calls, rpc), append(versions, "gubernator 2.21.0")
	}
	return resp, calls, versions
}

// startPeer starts a program that listens on two ports.
func startPeer(b *testing.B, path string, configure func(first, second string) (args, env []string),
) (first, second peer) {
	b.Helper()
	var ports [2]string
	for i := range ports {
		port, err := harness.FreePort()
		if err != nil {
			b.Fatal(err)
		}
		ports[i] = strconv.Itoa(port)
	}
	args, env := configure(ports[0], ports[1])
	p := &harness.Process{Path: path, Args: args, Env: env, Log: filepath.Join(b.TempDir(), "log")}
	if err := p.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.Stop)
	for _, port := range ports {
		harness.Until(b, path+" listens", func() bool {
			conn, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err == nil {
				_ = conn.Close() // It was only opened.
			}
			return err == nil
		})
	}
	return peer{cpu: p.CPU, addr: "127.0.0.1:" + ports[0]}, peer{cpu: p.CPU, addr: "127.0.0.1:" + ports[1]}
}

// peerProgram returns the path of a program, or "" if this machine lacks it.
func peerProgram(b *testing.B, name, install string) string {
	b.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		b.Logf("%s is left out: %v; install it with %s", name, err, install)
		return ""
	}
	return path
}

// versionOf returns the name and version that a program prints.
func versionOf(path string, arg string) string {
	out, _ := exec.Command(path, arg).Output()
	if _, after, ok := strings.Cut(string(out), "v="); ok { // redis-server says "Redis server v=7.0.15 sha=..."
		return strings.Fields(after)[0]
	}
	return strings.TrimSpace(string(out))
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

// appendNumbers appends numbers to consecutive fields.
func appendNumbers(b []byte, field protowire.Number, numbers ...uint64) []byte {
	for i, n := range numbers {
		b = protowire.AppendVarint(protowire.AppendTag(b, field+protowire.Number(i), protowire.VarintType), n)
	}
	return b
}

// writePeerTables replaces the tables between two comments of docs/performance.md, of its template and of what tests
// expect of the template.
func writePeerTables(b *testing.B, text string) {
	const begin, end = "<!-- make bench-peers -->\n", "<!-- end of make bench-peers -->"
	for _, file := range []string{"../docs/performance.md", "e2e/performance.md.tmpl", "e2e/testdata/performance.md"} {
		old := testfiles.Read(b, file)
		before, rest, ok := strings.Cut(string(old), begin)
		_, after, isClosed := strings.Cut(rest, end)
		if !ok || !isClosed {
			b.Fatalf("%s has no %s and %s", file, strings.TrimSpace(begin), end)
		}
		if err := os.WriteFile(file, []byte(before+begin+"\n"+text+"\n"+end+after), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}
