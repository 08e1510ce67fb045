package connlimit_test

import (
	"fmt"
	"net"

	"ratelimit/src/frontend/connlimit"
)

// A full port closes the connection that has been idle for longest.
func Example() {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	port := connlimit.New(raw, connlimit.Config{MaxConnections: 2})
	defer func() { _ = port.Close() }()

	for range 3 {
		client, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			fmt.Println(err)
			return
		}
		defer func() { _ = client.Close() }()
		server, err := port.Accept()
		if err != nil {
			fmt.Println(err)
			return
		}
		defer func() { _ = server.Close() }()
	}
	st := port.Stats()
	fmt.Printf("%d accepted, %d closed for others, %d open\n", st.Accepted, st.Evicted, st.Open)
	// Output: 3 accepted, 1 closed for others, 2 open
}
