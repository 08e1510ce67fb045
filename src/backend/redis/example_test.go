package redis_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/redistest"
)

// Three at once, then one every 20 s, counted in the Redis at addr. It says
// whether each of so many calls is over the limit, and how long it has to wait.
func logins(ctx context.Context, w io.Writer, addr string, calls int) error {
	set, _, err := filerules.Load([]filerules.File{{Name: "logins.yaml", Data: []byte(`
domain: logins
descriptors:
- key: user
  rate_limit: {algorithm: gcra, unit: minute, requests_per_unit: 3}
`)}}, compile.Options{})
	if err != nil {
		return err
	}
	store, err := redis.New(redis.Config{Addr: addr, Config: remote.Config{Timeout: 5 * time.Second}})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // it keeps the connections until ctx ends
		if err := store.Run(ctx); err != nil {
			log.Print(err)
		}
	}()

	l := limiter.New(limiter.Config{Backend: store})
	l.UseRules(set)
	req := limiter.Request{
		Domain:      []byte("logins"),
		Descriptors: []limiter.Descriptor{{Entries: []rules.Entry{{Key: []byte("user"), Value: []byte("alex")}}}},
	}
	var answer limiter.Answer
	for range calls {
		if err := l.Check(ctx, &req, &answer); err != nil {
			return err // the store did not answer: let it pass, or not
		}
		fmt.Fprintln(w, "over:", answer.Over, "wait:", answer.Statuses[0].RetryAfter.Round(time.Second))
	}
	return nil
}

// A limiter inside another program that shares its counters with other replicas.
func Example() {
	if err := logins(context.Background(), os.Stdout, "localhost:6379", 4); err != nil {
		log.Print(err)
	}
	// over: false wait: 0s
	// over: false wait: 0s
	// over: false wait: 0s
	// over: true wait: 20s
}

func TestExample(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	var out strings.Builder
	if err := logins(t.Context(), &out, server.Addr, 4); err != nil {
		t.Fatal(err)
	}
	if want := "over: false wait: 0s\nover: false wait: 0s\nover: false wait: 0s\nover: true wait: 20s\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}
