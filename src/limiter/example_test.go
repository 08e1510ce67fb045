package limiter_test

import (
	"context"
	"fmt"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

// A limiter inside another program: rules, a store, and a question.
func Example() {
	set, _, err := filerules.Load([]filerules.File{{Name: "api.yaml", Data: []byte(`
domain: api
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
`)}}, compile.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := memory.New(memory.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	l := limiter.New(limiter.Config{Backend: store})
	l.UseRules(set)

	req := limiter.Request{
		Domain:      []byte("api"),
		Descriptors: []limiter.Descriptor{{Entries: []rules.Entry{{Key: []byte("user"), Value: []byte("alex")}}}},
		Now:         time.Date(2026, 1, 1, 12, 0, 15, 0, time.UTC), // leave it out for now
	}
	var answer limiter.Answer
	for range 3 {
		if err := l.Check(context.Background(), &req, &answer); err != nil {
			fmt.Println(err)
			return
		}
		v := answer.Statuses[0].BindingCharge.Verdict
		fmt.Println("over:", answer.Over, "remaining:", v.Remaining, "wait:", v.RetryAfter)
	}
	// Output:
	// over: false remaining: 1 wait: 0s
	// over: false remaining: 0 wait: 0s
	// over: true remaining: 0 wait: 45s
}
