package service_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"ratelimit/src/service"
	"ratelimit/src/service/logging"
)

// This program serves one rule on free ports, asks three times and stops.
func Example() {
	dir, err := os.MkdirTemp("", "rules")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	rules := filepath.Join(dir, "rules.yaml")
	text := "domain: web\ndescriptors:\n- {key: user, rate_limit: {unit: day, requests_per_unit: 2}}\n"
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	cfg, err := service.ServeConfig([]string{
		"HOST=127.0.0.1", "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0",
		"DISABLE_STATS=true",
	}, rules)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	cfg.OnReady = func(r service.Ready) {
		go func() {
			defer stop()
			for range 3 {
				fmt.Println(ask(r.HTTPAddr))
			}
		}()
	}
	err = logging.WithOutput(io.Discard, io.Discard, func(o *logging.Output) error {
		cfg.Output = o
		s, err := service.New(cfg)
		if err != nil {
			return err
		}
		return s.Run(ctx)
	})
	fmt.Println("stopped:", err)
	// Output:
	// 200 OK
	// 200 OK
	// 429 Too Many Requests
	// stopped: <nil>
}

// ask asks the service whether user alex may do one thing.
func ask(service net.Addr) string {
	const body = `{"domain": "web", "descriptors": [{"entries": [{"key": "user", "value": "alex"}]}]}`
	resp, err := http.Post("http://"+service.String()+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	return resp.Status
}
