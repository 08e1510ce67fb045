package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

// Marks that must not appear in the log or in answers. Secrets are what operators configure, the others
// what callers send: their keys and values may be names, addresses, tokens.
const (
	secretMark = "s3cr3t"
	keyMark    = "kEyMaRk"
	valueMark  = "vAlUeMaRk"
)

// keysOfDebugLines finds the keys in lines about descriptors without a rule. Values are not there.
var keysOfDebugLines = regexp.MustCompile(`(msg="no rule applies" domain=d) keys=\S+`)

// told is all that the service said, and the reader of each text.
type told struct {
	mu    sync.Mutex
	where []string
	texts []string
}

func (o *told) add(where, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.where, o.texts = append(o.where, where), append(o.texts, text)
}

// search fails the test for each mark that was told.
func (o *told) search(t *testing.T, marks ...string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, text := range o.texts {
		for _, mark := range marks {
			if at := strings.Index(text, mark); at >= 0 {
				t.Errorf("%s tells %s: …%s…", o.where[i], mark, text[max(0, at-200):min(len(text), at+100)])
			}
		}
	}
}

const secretRules = `
domain: d
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: log, rate_limit: {unit: year, requests_per_unit: 2, algorithm: fixed_window}, descriptors: [{key: path, rate_limit: {unit: year, requests_per_unit: 2}}]}
`

// askAll asks over all protocols for what is good, over its limit, unknown and
// wrong, and keeps what is answered. Errors are answers, too.
func (s *service) askAll(t *testing.T, o *told) {
	t.Helper()
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	pairs := [][]string{
		{"user", valueMark},
		{keyMark, valueMark},
		{"log", valueMark, "path", valueMark},
		{"user", valueMark + strings.Repeat("x", 300)},
		{"", valueMark},
	}
	ask := func(r *rlsv3.RateLimitRequest) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		answer, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, r)
		o.add("gRPC", fmt.Sprint(answer, err))
	}
	for range 3 {
		for _, p := range pairs {
			d := new(commonv3.RateLimitDescriptor)
			for i := 0; i < len(p); i += 2 {
				d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: p[i], Value: p[i+1]})
			}
			ask(&rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*commonv3.RateLimitDescriptor{d}})
			ask(&rlsv3.RateLimitRequest{Descriptors: []*commonv3.RateLimitDescriptor{d}})
			wrong := &commonv3.RateLimitDescriptor{
				Entries: d.GetEntries(),
				Limit:   &commonv3.RateLimitDescriptor_RateLimitOverride{Unit: typev3.RateLimitUnit_UNKNOWN},
			}
			ask(&rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*commonv3.RateLimitDescriptor{wrong}})
		}
	}
	for _, body := range []string{
		`{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"` + valueMark + `"}]}]}`,
		`{"domain":"","descriptors":[{"entries":[{"key":"` + keyMark + `","value":"` + valueMark + `"}]}]}`,
		`{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"` + valueMark + `"}],"limit":{"requestsPerUnit":1}}]}`,
	} {
		resp, err := client.Post("http://"+s.http+"/json", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		o.add("/json", fmt.Sprint(resp.Status, resp.Header, string(text)))
	}
	// The answer to an invalid request may quote it; the log must not.
	for _, body := range []string{`{"` + keyMark + `":1}`, valueMark} {
		resp, err := client.Post("http://"+s.http+"/json", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	for _, line := range []string{
		"HIT user=" + valueMark, "HIT " + keyMark + "=" + valueMark,
		"HIT user=" + valueMark + "= " + keyMark, "HIT \"" + valueMark,
	} {
		conn, err := net.DialTimeout("tcp", s.divvy, patience)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, line+"\n"); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(conn)
		_ = conn.Close()
		o.add("divvy", fmt.Sprint(string(text), err))
	}
	for port, noise := range map[string]string{
		s.grpc: valueMark, s.http: "GET /" + valueMark + " " + keyMark + "\r\n\r\n",
		s.debug: valueMark + "\r\n\r\n",
	} {
		if conn, err := net.DialTimeout("tcp", port, patience); err == nil {
			_, _ = io.WriteString(conn, noise)
			_ = conn.Close()
		}
	}
}

// look reads all pages.
func (s *service) look(t *testing.T, o *told, token string) {
	t.Helper()
	for _, url := range []string{
		s.http + "/healthcheck", s.http + "/livez", s.http + "/readyz", s.prometheus + "/metrics",
		s.debug + "/", s.debug + "/readyz", s.debug + "/rlconfig", s.debug + "/rlconfig?format=yaml", s.debug + "/stats",
		s.debug + "/stats?format=json",
		s.debug + "/debug/pprof/", s.debug + "/debug/pprof/cmdline", s.debug + "/debug/pprof/goroutine?debug=2",
		s.debug + "/debug/pprof/heap?debug=1",
	} {
		for _, token := range []string{token, "wrong"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+url, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			o.add(url, fmt.Sprint(resp.Header, string(text)))
		}
	}
}

// startMarked starts a service that logs all it can, with rules, and waits until it
// listens.
func startMarked(t *testing.T, env ...string) *service {
	t.Helper()
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", secretRules)
	s := startServiceUnready(t, append(append(rules.env(), "LOG_LEVEL=trace", "USE_PROMETHEUS=true",
		"PROMETHEUS_ADDR=127.0.0.1:0",
		"DIVVY_HOST=127.0.0.1", "DIVVY_PORT=0", "DIVVY_DOMAIN=d", "FORCE_START_WITHOUT_INITIAL_CONFIG=true",
		"LIMIT_RESPONSE_HEADERS_ENABLED=true",
		"DEBUG_TOKEN="+secretMark+"-debug"), env...)...)
	s.until(t, "divvy's port is open", func() error {
		if s.readLog(t); s.divvy != "" && s.grpc != "" {
			return nil
		}
		return fmt.Errorf("it does not say where")
	})
	return s
}

// Whatever fails, neither what operators keep secret nor what callers sent is in
// the log, in an error, on a page or in a metric. Traces have what callers sent,
// as docs/monitoring.md says, and no secret.
func TestNothingSecretIsTold(t *testing.T) {
	t.Run("Redis", nothingSecretWithRedis)

	t.Run("Memcached", nothingSecretWithMemcached)

	t.Run("simulate", nothingSecretWithSimulate)
	nothingSecretWithoutAStore(t)
	nothingSecretInRefusals(t)
}

// nothingSecretWithoutAStore starts the service with secrets that its servers refuse,
// or with servers that do not answer.
func nothingSecretWithoutAStore(t *testing.T) {
	other := redistest.Start(t, redistest.Options{Password: "another"})
	file := filepath.Join(t.TempDir(), "password")
	testfiles.Write(t, file, secretMark+"-file\n")
	token := filepath.Join(t.TempDir(), "token")
	form := fmt.Sprintf(`{"Version":1,"AccessKeyId":"u","SecretAccessKey":%q}`, secretMark)
	testfiles.Write(t, token, form)
	for name, env := range map[string][]string{
		"a wrong password":            {"REDIS_URL=" + other.Addr, "REDIS_AUTH=" + secretMark},
		"a wrong user and password":   {"REDIS_URL=" + other.Addr, "REDIS_AUTH=" + secretMark + ":" + secretMark},
		"a wrong password in the URL": {"REDIS_URL=redis://user:" + secretMark + "@" + other.Addr + "/1"},
		"a wrong password in a file":  {"REDIS_URL=" + other.Addr, "REDIS_AUTH_FILE=" + file},
		"a wrong token of a program":  {"REDIS_URL=" + other.Addr, "REDIS_AUTH_COMMAND=/bin/cat " + token},
		"a program without a token":   {"REDIS_URL=" + other.Addr, "REDIS_AUTH_COMMAND=/bin/cat " + file},
		"a user of IAM that is none": {
			"REDIS_URL=" + other.Addr, "REDIS_AWS_IAM_AUTH=true", "REDIS_AWS_IAM_CACHE_NAME=c", "REDIS_AWS_IAM_USER_ID=u",
			"AWS_REGION=r", "AWS_ACCESS_KEY_ID=" + secretMark, "AWS_SECRET_ACCESS_KEY=" + secretMark + "-of-sixteen-bytes",
			"AWS_SESSION_TOKEN=" + secretMark,
		},
		"no server": {
			"REDIS_URL=redis://:" + secretMark + "@127.0.0.1:1", "REDIS_PERSECOND=true",
			"REDIS_PERSECOND_URL=rediss://a:" + secretMark + "@127.0.0.1:1",
		},
		"sentinels that are none": {
			"REDIS_TYPE=SENTINEL", "REDIS_URL=main,redis://:" + secretMark + "@" + other.Addr,
			"REDIS_SENTINEL_AUTH=" + secretMark, "REDIS_AUTH=" + secretMark,
		},
		"a cluster that is none": {
			"REDIS_TYPE=CLUSTER",
			"REDIS_URL=redis://:" + secretMark + "@" + other.Addr + ",redis://:" + secretMark + "@127.0.0.1:1",
		},
		"headers for no xDS server": {
			"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:1",
			"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:" + secretMark,
		},
		"headers of OTLP":           {"TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_HEADERS=" + secretMark},
		"headers of OTLP's metrics": {"OTEL_METRICS_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_METRICS_HEADERS=a b=" + secretMark},
		"a collector that is none": {
			"TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=" + secretMark,
			"OTEL_EXPORTER_OTLP_TIMEOUT=" + secretMark,
		},
		"headers for another server": {
			"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + other.Addr,
			"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:" + secretMark,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := new(told)
			s := startMarked(t, env...)
			s.until(t, "it says what is wrong", func() error {
				if log := s.log(t); !strings.Contains(log, "level=warning") && !strings.Contains(log, "level=error") {
					return fmt.Errorf("it says nothing")
				}
				return nil
			})
			s.askAll(t, o)
			s.look(t, o, secretMark+"-debug")
			s.stop(t)
			o.add("the log", keysOfDebugLines.ReplaceAllString(s.log(t), "$1"))
			o.search(t, secretMark, keyMark, valueMark)
		})
	}
}

// nothingSecretInRefusals starts the service with settings that it refuses.
func nothingSecretInRefusals(t *testing.T) {
	certificates := harness.NewCertificates(t)
	key := testfiles.Read(t, certificates.Server.Key)
	body := strings.Split(string(key), "\n")[1][:40] // of the key in base64
	swapped := filepath.Join(t.TempDir(), "swapped.crt")
	testfiles.Write(t, swapped, key)
	for name, env := range map[string][]string{
		"an URL":         {"REDIS_URL=redis://user:" + secretMark + "@host:port/" + secretMark},
		"another scheme": {"REDIS_URL=http://user:" + secretMark + "@host:1"},
		"several":        {"REDIS_URL=user:" + secretMark + "@a:1,b:1"},
		"a sentinel":     {"REDIS_TYPE=SENTINEL", "REDIS_URL=main," + secretMark},
		"a node":         {"REDIS_TYPE=CLUSTER", "REDIS_URL=redis://:" + secretMark + "@a:1/7"},
		"a second URL":   {"REDIS_URL=a:1", "REDIS_PERSECOND=true", "REDIS_PERSECOND_URL=redis://:" + secretMark + "@:1"},
		"headers of xDS": {"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=" + secretMark},
		"names of those": {"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=a b:" + secretMark},
		"a key as cert": {
			"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + swapped,
			"GRPC_SERVER_TLS_KEY=" + certificates.Server.Key,
		},
		"keys of two": {
			"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + certificates.Client.Cert,
			"GRPC_SERVER_TLS_KEY=" + certificates.Server.Key,
		},
		"keys for Redis": {
			"REDIS_URL=rediss://a:1", "REDIS_TLS_CLIENT_CERT=" + swapped,
			"REDIS_TLS_CLIENT_KEY=" + certificates.Server.Key,
		},
	} {
		t.Run("refused: "+name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			cmd := serviceCommand(t, append(env, "LOG_LEVEL=trace", "DEBUG_TOKEN="+secretMark)...)
			cmd.Stdout, cmd.Stderr = &out, &out
			ended := make(chan error, 1)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			go func() { ended <- cmd.Wait() }()
			select {
			case err := <-ended:
				if err == nil {
					t.Error("it ended well")
				}
			case <-time.After(patience):
				_ = cmd.Process.Kill()
				t.Errorf("it started, and ended with %v when it was killed", <-ended)
			}
			o := new(told)
			o.add("the start", out.String())
			o.search(t, secretMark, body)
		})
	}
}

func nothingSecretWithSimulate(t *testing.T) {
	t.Parallel()
	other := redistest.Start(t, redistest.Options{Password: "another"})
	for _, url := range []string{
		"redis://u:" + secretMark + "@127.0.0.1:1", "redis://u:" + secretMark + "@" + other.Addr,
		"redis://u:" + secretMark + "@h:p",
	} {
		out, err := run("simulate", "--config", filepath.Join(repository, "examples/ratelimit/config"), "--backend", "redis",
			"--redis-url", url, "/dev/null")
		if err == nil {
			t.Errorf("%s: it ended well: %s", url, out)
		}
		o := new(told)
		o.add("simulate", out)
		o.search(t, secretMark)
	}
}

func nothingSecretWithMemcached(t *testing.T) {
	t.Parallel()
	o := new(told)
	proxy := harness.StartProxy(t, memcachedtest.Start(t, memcachedtest.Options{}).Addr)
	s := startMarked(t, "BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT="+proxy.Addr, "MEMCACHE_TIMEOUT=200ms",
		"STORE_FAILURE_MODE=local", "LIMIT_DEGRADED_HEADER=x-degraded")
	s.awaitReady(t)
	for _, fault := range []func(){proxy.Heal, proxy.Garbage, proxy.Reset, proxy.Blackhole} {
		fault()
		s.askAll(t, o)
		s.look(t, o, secretMark+"-debug")
	}
	s.stop(t)
	o.add("the log", keysOfDebugLines.ReplaceAllString(s.log(t), "$1"))
	o.search(t, secretMark, keyMark, valueMark)
}

func nothingSecretWithRedis(t *testing.T) {
	t.Parallel()
	o := new(told)
	spans := new(told)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		spans.add("a trace", string(body))
		http.Error(w, "the collector is full", http.StatusTeapot)
	}))
	defer collector.Close()
	server := redistest.Start(t, redistest.Options{Password: secretMark + "-auth"})
	proxy := harness.StartProxy(t, server.Addr)
	s := startMarked(t, "REDIS_URL="+proxy.Addr, "REDIS_AUTH="+secretMark+"-auth", "REDIS_TIMEOUT=200ms",
		"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true", "LOCAL_CACHE_SIZE_IN_BYTES=1048576",
		"TRACING_ENABLED=true", "OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_EXPORTER_OTLP_HEADERS=authorization="+secretMark+"-otlp",
		"OTEL_EXPORTER_OTLP_ENDPOINT="+strings.Replace(collector.URL, "http://", "http://user:"+secretMark+"-url@", 1))
	s.awaitReady(t)
	s.askAll(t, o)
	client := server.Client(t)
	// What is counted under is something else than a number from now on.
	keys, err := client.Do("KEYS", "*")
	if err != nil {
		t.Fatal(err)
	}
	list, _ := keys.([]any)
	if len(list) == 0 {
		t.Error("nothing was counted")
	}
	for _, key := range list {
		if _, err := client.Do("SET", key, valueMark); err != nil {
			t.Fatal(err)
		}
	}
	s.askAll(t, o)
	for _, fault := range []func(){
		proxy.Garbage, proxy.Reset, proxy.Blackhole,
		func() { proxy.Heal(); proxy.Reset(); proxy.Refuse() },
	} {
		fault()
		s.askAll(t, o)
		s.look(t, o, secretMark+"-debug")
	}
	proxy.Heal()
	if _, err := client.Do("CONFIG", "SET", "requirepass", "another"); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	s.askAll(t, o)
	s.look(t, o, secretMark+"-debug")
	s.stop(t)
	o.add("the log", keysOfDebugLines.ReplaceAllString(s.log(t), "$1"))
	o.search(t, secretMark, keyMark, valueMark)
	if !strings.Contains(s.log(t), "level=debug") || !strings.Contains(s.log(t), "the collector did not take") {
		t.Error("the log does not tell what it could")
	}
	if !strings.Contains(strings.Join(spans.texts, ""), valueMark) {
		t.Error("no request was traced, or not so that this test can read it")
	}
	spans.search(t, secretMark)
}
