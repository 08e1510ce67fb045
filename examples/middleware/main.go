package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sync/errgroup"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/redis"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

// What the service allows: five requests a minute from one address.
const ruleFile = `
domain: web
descriptors:
  - key: remote_address
    rate_limit: {unit: minute, requests_per_unit: 5}
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("REDIS_ADDR")); err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends, with the counters in this process, or in the Redis
// at host:port if that is given.
func run(ctx context.Context, redisAddr string) error {
	g, ctx := errgroup.WithContext(ctx)
	store, err := open(ctx, g, redisAddr)
	if err != nil {
		return err
	}
	set, _, err := filerules.Load([]filerules.File{{Name: "rules.yaml", Data: []byte(ruleFile)}}, compile.Options{})
	if err != nil {
		return err
	}
	l := limiter.New(limiter.Config{Backend: store})
	l.UseRules(set)

	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	srv := &http.Server{
		Addr:              "127.0.0.1:8088",
		Handler:           Limit(l, "web", byAddress, hello),
		ReadHeaderTimeout: 5 * time.Second,
	}
	context.AfterFunc(ctx, func() { _ = srv.Shutdown(context.Background()) })
	log.Printf("try: for i in 1 2 3 4 5 6; do curl -i http://%s/; done", srv.Addr)
	g.Go(func() error {
		if err := srv.ListenAndServe(); err != http.ErrServerClosed {
			return err
		}
		return nil
	})
	return g.Wait()
}

// open returns the store. That of Redis answers while its Run runs.
func open(ctx context.Context, g *errgroup.Group, redisAddr string) (backend.Backend, error) {
	if redisAddr == "" {
		return memory.New(memory.Config{})
	}
	store, err := redis.New(redis.Config{Addr: redisAddr})
	if err != nil {
		return nil, err
	}
	g.Go(func() error { return store.Run(ctx) })
	return store, nil
}

// byAddress describes a request by the address it comes from.
func byAddress(r *http.Request) []rules.Entry {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return nil
	}
	return []rules.Entry{{Key: []byte("remote_address"), Value: []byte(host)}}
}
