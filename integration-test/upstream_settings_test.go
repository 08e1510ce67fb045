package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/settings"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
	"ratelimit/testbed/xdstest"
)

// oddSettings is a row of testdata/odd_settings.txt: the service starts once for each variable and value, beside the
// variables of a surrounding.
type oddSettings struct {
	in     string // a surrounding, see settingsLab.
	names  string // lists variables, separated by blanks.
	serves []odd  // values with which the service becomes ready.
	ends   []odd  // values with which it ends, with status 1.
}

// odd is a value, and words of the log. $NAME stands for the name of the variable. Without words, no warning names the
// variable. $redis and the like in a value are replaced, see settingsLab.
type odd struct{ value, words string }

// readOddSettings reads testdata/odd_settings.txt.
func readOddSettings(t *testing.T) (rows []oddSettings) {
	t.Helper()
	text := testfiles.Read(t, "testdata/odd_settings.txt")
	sets := make(map[string][]odd)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] != ' ' {
			in, names, _ := strings.Cut(line, ": ")
			rows = append(rows, oddSettings{in: in, names: names})
			continue
		}
		row := &rows[len(rows)-1]
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		values := sets[strings.TrimPrefix(rest, "@")]
		if quoted, err := strconv.QuotedPrefix(rest); err == nil {
			value, _ := strconv.Unquote(quoted) // QuotedPrefix has checked it.
			values = []odd{{value, strings.TrimSpace(rest[len(quoted):])}}
		}
		switch {
		case len(values) == 0:
			t.Fatalf("%q has no value", line)
		case row.in == "set":
			sets[row.names] = append(sets[row.names], values...)
		case kind == "serves":
			row.serves = append(row.serves, values...)
		default:
			row.ends = append(row.ends, values...)
		}
	}
	return slices.DeleteFunc(rows, func(row oddSettings) bool { return row.in == "set" })
}

// settingsLab has the surroundings of odd values, by name, and what stands for $redis and the like.
type settingsLab struct {
	surroundings map[string][]string
	replacer     *strings.Replacer
}

func newSettingsLab(t *testing.T) *settingsLab {
	t.Helper()
	certs := harness.NewCertificates(t)
	redis, memcached := redistest.Start(t, redistest.Options{}), memcachedtest.Start(t, memcachedtest.Options{})
	locked := redistest.Start(t, redistest.Options{Password: "s3cret"})
	secure := redistest.Start(t, redistest.Options{TLS: certs})
	secureMemcached := memcachedtest.Start(t, memcachedtest.Options{TLS: certs})
	cluster := redistest.StartCluster(t, redistest.ClusterOptions{})
	l := harness.Listen(t)
	management := xdstest.Start(t, l)
	for _, node := range []string{"default", "", "a b"} {
		management.Publish(t, node, "1", &configv3.RateLimitConfig{Name: "d", Domain: "d"})
	}
	freePort, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: 10}}\n")
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	testfiles.Write(t, bad, "mappings: 5\n")
	onRedis := []string{"BACKEND_TYPE=redis", "REDIS_URL=" + redis.Addr}
	onMemcached := []string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + memcached.Addr}
	onDogStatsd := []string{"USE_DOG_STATSD=true", "STATSD_HOST=127.0.0.1"}
	lab := &settingsLab{surroundings: map[string][]string{
		"memory":    {"BACKEND_TYPE=memory"},
		"redis":     onRedis,
		"password":  {"BACKEND_TYPE=redis", "REDIS_URL=" + locked.Addr},
		"redistls":  {"BACKEND_TYPE=redis", "REDIS_TLS=true", "REDIS_URL=" + secure.Addr, "REDIS_TLS_CACERT=" + certs.CA},
		"persecond": append(slices.Clone(onRedis), "REDIS_PERSECOND=true", "REDIS_PERSECOND_URL="+redis.Addr),
		"cluster":   {"BACKEND_TYPE=redis", "REDIS_TYPE=cluster", "REDIS_URL=" + cluster.Addrs[0]},
		"memcache":  onMemcached,
		"memcachetls": {
			"BACKEND_TYPE=memcache", "MEMCACHE_TLS=true", "MEMCACHE_HOST_PORT=" + secureMemcached.Addr,
			"MEMCACHE_TLS_CACERT=" + certs.CA,
			"MEMCACHE_TLS_CLIENT_CERT=" + certs.Client.Cert, "MEMCACHE_TLS_CLIENT_KEY=" + certs.Client.Key,
		},
		"headers":   {"LIMIT_RESPONSE_HEADERS_ENABLED=true"},
		"statsd":    {"USE_STATSD=true", "STATSD_HOST=127.0.0.1"},
		"dogstatsd": onDogStatsd,
		"mogrifier": append(slices.Clone(onDogStatsd), "USE_DOG_STATSD_MOGRIFIERS=a", "DOG_STATSD_MOGRIFIER_A_PATTERN=x",
			"DOG_STATSD_MOGRIFIER_A_NAME=y"),
		"prometheus": {"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0"},
		"tracing":    {"TRACING_ENABLED=true"},
		"xds":        {"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + l.Addr().String()},
		"tls": {
			"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + certs.Server.Cert,
			"GRPC_SERVER_TLS_KEY=" + certs.Server.Key,
		},
	}}
	for name, env := range lab.surroundings {
		lab.surroundings[name] = append(rules.env(), env...)
	}
	lab.replacer = strings.NewReplacer(
		"$EMPTY", "$NAME is set but empty; its default",
		"$redisport", portIn(t, redis.Addr), "$redis", redis.Addr, "$cluster", cluster.Addrs[0], "$memcachedport",
		portIn(t, memcached.Addr),
		"$memcached", memcached.Addr, "$xds", l.Addr().String(), "$port", fmt.Sprint(freePort), "$dir", dir, "$bad", bad,
		"$ca", certs.CA, "$root", rules.root, "$base", filepath.Base(rules.root),
	)
	return lab
}

// portIn returns the port of host:port.
func portIn(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// startOnce starts the service, stops it once it is ready, and returns its log.
func startOnce(t *testing.T, env []string) (ready bool, log string) {
	t.Helper()
	cmd := serviceCommand(t, env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tooLong := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer tooLong.Stop()
	var text strings.Builder
	lines := bufio.NewReader(stderr)
	for err == nil {
		var line string
		line, err = lines.ReadString('\n')
		text.WriteString(line)
		if strings.Contains(line, "msg=ready") && !ready {
			ready = true
			_ = cmd.Process.Signal(syscall.SIGTERM) // It fails if the process has ended, and then the status says so.
		}
	}
	if err != io.EOF {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil && (ready || err.(*exec.ExitError).ExitCode() != 1) {
		t.Errorf("%v", err)
	}
	return ready, text.String()
}

// try starts the service with one odd value.
func (lab *settingsLab) try(t *testing.T, in, name string, o odd, wantReady bool) {
	t.Helper()
	value := lab.replacer.Replace(o.value)
	words := strings.ReplaceAll(lab.replacer.Replace(o.words), "$NAME", name)
	ready, log := startOnce(t, append(slices.Clone(lab.surroundings[in]), name+"="+value))
	warned := strings.Contains(log, words)
	if words == "" && ready {
		for line := range strings.Lines(log) {
			warned = warned && !(strings.Contains(line, "level=warning") && strings.Contains(line, name))
		}
	}
	if ready != wantReady || !warned {
		t.Fatalf("%s, %s=%q: ready %t, want %t with %q, and in\n%s", in, name, value, ready, wantReady, words, log)
	}
	if strings.Contains(log, "s3cret") {
		t.Errorf("%s, %s=%q: the value is in\n%s", in, name, value, log)
	}
}

func TestUpstreamOddSettings(t *testing.T) {
	lab := newSettingsLab(t)
	tried := make(map[string]bool)
	for _, row := range readOddSettings(t) {
		if lab.surroundings[row.in] == nil {
			t.Fatalf("there is no surrounding %q", row.in)
		}
		for name := range strings.FieldsSeq(row.names) {
			tried[name] = true
			t.Run(row.in+" "+name, func(t *testing.T) {
				t.Parallel()
				for _, o := range row.serves {
					lab.try(t, row.in, name, o, true)
				}
				for _, o := range row.ends {
					lab.try(t, row.in, name, o, false)
				}
			})
		}
	}
	own := strings.Fields(ownSettings)
	for _, v := range settings.Table() {
		isFamily := strings.Contains(v.Name, "<")
		if !tried[v.Name] && !isFamily &&
			!slices.ContainsFunc(own, func(start string) bool { return strings.HasPrefix(v.Name, start) }) {
			t.Errorf("%s has no row, and is no setting that envoyproxy/ratelimit does not have", v.Name)
		}
	}
}

// ownSettings lists the variables that envoyproxy/ratelimit does not have, or the starts of their names.
const ownSettings = `HEALTH_HOST HEALTH_PORT DEBUG_ALLOWED_HOSTS DEBUG_PPROF DEBUG_TOKEN DEBUG_PEERS COUNTING_MODE CONTENTION_MODE LEASE_MAX_BYTES OVERRIDES_ NOTIFY_ DEBUG_TLS_ HTTP_ GRPC_MAX_CONNECTIONS GRPC_MAX_MESSAGE_BYTES
	GRPC_MAX_CONCURRENT_STREAMS GRPC_KEEPALIVE_ GRPC_ENGINE GRPC_REFLECTION QUOTA_MAX_ QUOTA_ABANDON_AFTER MAX_ DIVVY_ RESP_
	LOG_DENIALS RECENT_DENIALS TOP_SUBJECTS_RULES RUNTIME_CANDIDATE_ CANDIDATE_ RUNTIME_DEBOUNCE RUNTIME_POLL_INTERVAL RUNTIME_READ_TIMEOUT
	CONFIG_ALL_OR_NOTHING CONFIG_INITIAL_TIMEOUT CONFIG_GRPC_XDS2_ MEMORY_ CACHE_KEY_FORMAT REDIS_AUTH_FILE REDIS_SENTINEL_AUTH_FILE
	REDIS_PERSECOND_AUTH_FILE REDIS_PERSECOND_SENTINEL_AUTH_FILE REDIS_AUTH_COMMAND REDIS_AUTH_USER REDIS_AWS_IAM_
	CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS_FILE
	REDIS_SENTINEL_AUTH_COMMAND REDIS_PERSECOND_AUTH_COMMAND REDIS_PERSECOND_AUTH_USER REDIS_PERSECOND_AWS_IAM_
	REDIS_PERSECOND_SENTINEL_AUTH_COMMAND MEMCACHE_HASH MEMCACHE_TIMEOUT MEMCACHE_HEALTH_CHECK_ STORE_ REPLICAS
	LIMIT_DEGRADED_HEADER LIMIT_RESPONSE_HEADERS_FORMAT STATS_MAX_SERIES OTEL_ SHUTDOWN_`

// Kubernetes describes each Service of the namespace in variables, and the names of some Services are the starts of our
// names.
func TestUpstreamServiceLinks(t *testing.T) {
	lab := newSettingsLab(t)
	for _, name := range []string{
		"DIVVY", "HEALTH", "RESP", "GRPC", "DEBUG", "STATSD", "MEMCACHE_HOST", "REDIS",
		"RATELIMIT",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ip, port = "10.96.0.7", "8321"
			link := "tcp://" + ip + ":" + port
			env := []string{
				name + "_SERVICE_HOST=" + ip, name + "_SERVICE_PORT=" + port, name + "_SERVICE_PORT_TCP=" + port,
				name + "_PORT=" + link,
			}
			for _, end := range []string{"=" + link, "_PROTO=tcp", "_PORT=" + port, "_ADDR=" + ip} {
				env = append(env, name+"_PORT_"+port+"_TCP"+end)
			}
			ready, log := startOnce(t, slices.Concat(lab.surroundings["memory"], env))
			isOurs := name != "REDIS" && name != "RATELIMIT"
			if !ready || strings.Contains(log,
				name+"_PORT="+link+" has no effect: it is Kubernetes' link to a Service") != isOurs ||
				strings.Count(log, name+"_") != map[bool]int{true: 1}[isOurs] {
				t.Errorf("ready %t, with the log\n%s", ready, log)
			}
		})
	}
}
