package gateway

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/xdstest"
)

// quotaPolicy has the shape of what Envoy AI Gateway's controller sends for a QuotaPolicy: below each backend its
// models, and below a model a level for each header of a bucket rule; the last rule is the default bucket. All limits
// are in quota mode.
func quotaPolicy() *configv3.RateLimitConfig {
	perDay := func(n uint32) *configv3.RateLimitPolicy {
		return &configv3.RateLimitPolicy{RequestsPerUnit: n, Unit: configv3.RateLimitUnit_DAY}
	}
	same := func(key string, limit uint32, below ...*configv3.RateLimitDescriptor) *configv3.RateLimitDescriptor {
		d := &configv3.RateLimitDescriptor{Key: key, Value: key, Descriptors: below}
		if limit > 0 {
			d.RateLimit, d.QuotaMode = perDay(limit), true
		}
		return d
	}
	return &configv3.RateLimitConfig{
		Name: "ai-gateway-quota", Domain: "ai-gateway-quota",
		Descriptors: []*configv3.RateLimitDescriptor{{
			Key: "backend_name", Value: "default/openai",
			Descriptors: []*configv3.RateLimitDescriptor{
				{Key: "model_name_override", Value: "small", RateLimit: perDay(100), QuotaMode: true},
				{Key: "model_name_override", Value: "large", Descriptors: []*configv3.RateLimitDescriptor{
					same("rule-0-x-plan|paid-match-0", 0,
						&configv3.RateLimitDescriptor{Key: "rule-0-x-user-match-1", RateLimit: perDay(50), QuotaMode: true}),
					same("rule-1-match--1", 10),
				}},
			},
		}},
	}
}

// The service enforces the quotas of Envoy AI Gateway, whose controller sends rules without TLS to a node with a name
// of its own.
func TestQuotaPolicy(t *testing.T) {
	onlyFull(t)
	t.Parallel()
	l := harness.Listen(t)
	controller := xdstest.Start(t, l)
	controller.Publish(t, "envoy-ai-gateway-ratelimit", "1", quotaPolicy())
	binary, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	s := stack{service: harness.Process{
		Path: binary, Log: filepath.Join(t.TempDir(), "log"),
		Env: []string{
			"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + l.Addr().String(),
			"CONFIG_GRPC_XDS_NODE_ID=envoy-ai-gateway-ratelimit",
			"REDIS_URL=" + redistest.Start(t, redistest.Options{}).Addr, "REDIS_TIMEOUT=5s", "USE_STATSD=false",
			"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
			"PORT=" + portOf(address), "GRPC_PORT=" + portOf(freeAddress(t)), "DEBUG_PORT=" + portOf(freeAddress(t)),
		},
	}}
	s.start(t, &s.service, "ratelimit")
	harness.Await(t, harness.Deadline, "the service is not ready", func() error {
		_, err := postJSON(address, "")
		return err
	})

	const backend, other = "backend_name=default/openai", "backend_name=default/other"
	paid := func(user string) string {
		return backend + ",model_name_override=large,rule-0-x-plan|paid-match-0=rule-0-x-plan|paid-match-0,rule-0-x-user-match-1=" + user
	}
	const free = backend + ",model_name_override=large,rule-1-match--1=rule-1-match--1"
	for i, tt := range []struct {
		tokens      int
		descriptors string // separated by "; "
		want        int
	}{
		{0, backend + ",model_name_override=small", 200},
		{100, backend + ",model_name_override=small", 200},
		{1, backend + ",model_name_override=small", 429},
		{50, paid("ann"), 200}, // each user of a plan has a bucket
		{1, paid("ann"), 429},
		{1, paid("bob"), 200},
		{10, free, 200}, // the default bucket
		{1, free, 429},
		{1, backend + ",model_name_override=unknown", 200}, // no quota
		{1, other + ",model_name_override=small", 200},
		{1, backend + ",model_name_override=small; " + paid("bob"), 200}, // one of two backends has quota left
		{1, backend + ",model_name_override=small; " + paid("ann"), 429}, // none has
	} {
		if code, err := postJSON(address, jsonRequest(tt.tokens, tt.descriptors)); err != nil || code != tt.want {
			t.Errorf("request %d, %d tokens of %s: %d, %v; want %d", i+1, tt.tokens, tt.descriptors, code, err, tt.want)
		}
	}
}

// jsonRequest writes a request in the JSON of Envoy's messages.
func jsonRequest(tokens int, descriptors string) string {
	var list []string
	for d := range strings.SplitSeq(descriptors, "; ") {
		var entries []string
		for entry := range strings.SplitSeq(d, ",") {
			key, value, _ := strings.Cut(entry, "=")
			entries = append(entries, fmt.Sprintf(`{"key": %q, "value": %q}`, key, value))
		}
		list = append(list, fmt.Sprintf(`{"entries": [%s], "hitsAddend": "%d"}`, strings.Join(entries, ", "), tokens))
	}
	return fmt.Sprintf(`{"domain": "ai-gateway-quota", "descriptors": [%s]}`, strings.Join(list, ", "))
}

// postJSON sends a request to /json. An empty one asks /healthcheck.
func postJSON(address, body string) (int, error) {
	if body == "" {
		resp, err := http.Get("http://" + address + "/healthcheck")
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("/healthcheck: %s", resp.Status)
		}
		if resp != nil {
			_ = resp.Body.Close()
		}
		return 0, err
	}
	resp, err := http.Post("http://"+address+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}
