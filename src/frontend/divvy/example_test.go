package divvy_test

import (
	"context"
	"fmt"
	"io"
	"net"

	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/divvy"
	"ratelimit/src/limiter"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

// A server of divvy's protocol inside another program, and a client of it.
func Example() {
	set, _, err := filerules.Load([]filerules.File{{Name: "kitchen.yaml", Data: []byte(`
domain: kitchen
descriptors:
  - key: ip
    rate_limit: {algorithm: first_hit_window, period: 1m, requests_per_unit: 2}
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
	server, err := divvy.New(divvy.Config{Limiter: l, Domain: "kitchen"})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()

	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Fprint(conn, "HIT ip=10.0.0.7\nHIT ip=10.0.0.7\nHIT ip=10.0.0.7\nEGGPLANT\n")
	replies, err := io.ReadAll(conn) // the ERR ends the connection
	if err != nil {
		fmt.Println(err)
	}
	fmt.Print(string(replies))

	if err := conn.Close(); err != nil {
		fmt.Println(err)
	}
	server.Shutdown(context.Background())
	if err := <-served; err != nil {
		fmt.Println(err)
	}
	// Output:
	// OK true 1 60
	// OK true 0 60
	// OK false 0 60
	// ERR unknown-command "Unrecognized command: EGGPLANT"
}
