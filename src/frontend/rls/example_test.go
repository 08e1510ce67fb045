package rls_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

// limits returns a limiter over memory with one rule: two requests a year for each user.
func limits() (*limiter.Limiter, error) {
	set, _, err := filerules.Load([]filerules.File{{Name: "api.yaml", Data: []byte(`
domain: api
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
`)}}, compile.Options{})
	if err != nil {
		return nil, err
	}
	store, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	l := limiter.New(limiter.Config{Backend: store})
	l.UseRules(set)
	return l, nil
}

// A service answers over HTTP what it answers over gRPC.
func ExampleService_JSONHandler() {
	l, err := limits()
	if err != nil {
		fmt.Println(err)
		return
	}
	service := rls.New(rls.Config{
		Limiter:     l,
		HeaderNames: &rls.HeaderNames{Limit: "RateLimit-Limit", Remaining: "RateLimit-Remaining", Reset: "RateLimit-Reset"},
	})
	for range 3 {
		body := strings.NewReader(`{"domain": "api", "descriptors": [{"entries": [{"key": "user", "value": "alex"}]}]}`)
		w := httptest.NewRecorder()
		service.JSONHandler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/json", body))
		fmt.Println(w.Code, "remaining:", w.Header().Get("RateLimit-Remaining"))
	}
	// Output:
	// 200 remaining: 1
	// 200 remaining: 0
	// 429 remaining: 0
}

// Tools read requests as /json does.
func ExampleParseJSON() {
	req, err := rls.ParseJSON(
		[]byte(`{"domain": "api", "hitsAddend": 3, "descriptors": [{"entries": [{"key": "user", "value": "alex"}]}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	e := req.Descriptors[0].Entries[0]
	fmt.Printf("%s: %s=%s, %d hits\n", req.Domain, e.Key, e.Value, req.DefaultAmount)
	_, err = rls.ParseJSON([]byte(`{"domain": 5}`))
	fmt.Println(err)
	// Output:
	// api: user=alex, 3 hits
	// column 12: invalid value for string field domain: 5
}
