package connlimit

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// A request that was read as a whole makes its connection busy until the answer, over
// TLS, too; one that is still being sent does not. What was read is held until then.
func TestHTTP(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%t", secure), func(t *testing.T) {
			t.Parallel()
			held := NewMemoryBudget(1 << 20)
			inside, release := make(chan struct{}), make(chan struct{})
			srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					return
				}
				inside <- struct{}{}
				<-release
			}))
			limit := New(srv.Listener, Config{MaxConnections: 1, GreetingWrites: 10, MemoryBudget: held})
			srv.Listener = limit
			TrackHTTPServer(srv.Config)
			start, dial := srv.Start, net.Dial
			if secure {
				start = srv.StartTLS
				dial = func(network, addr string) (net.Conn, error) {
					return tls.Dial(network, addr, &tls.Config{InsecureSkipVerify: true})
				}
			}
			start()
			defer srv.Close()
			connect := func() net.Conn {
				c, err := dial("tcp", limit.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // else a test hangs
				return c
			}
			for _, said := range []struct{ first, rest string }{
				{"GET / HTTP/1.1\r\nHost: a\r\n", "\r\n"},
				{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell", "o"},
				{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "0\r\n\r\n"},
			} {
				slow, quick := connect(), net.Conn(nil)
				_, _ = io.WriteString(slow, said.first) // the end says whether it arrived
				quick = connect()                       // makes slow end
				if _, err := slow.Read(make([]byte, 1)); err == nil {
					t.Errorf("%q: a connection in the middle of its request keeps a newcomer out", said.first)
				}
				_, _ = io.WriteString(quick, said.first+said.rest)
				<-inside
				if held.HeldBytes() < int64(len(said.first)) {
					t.Errorf("%q: %d bytes held, want those of the request", said.first, held.HeldBytes())
				}
				evicted := limit.Stats().Evicted
				if c, err := net.Dial("tcp", limit.Addr().String()); err == nil {
					_, _ = c.Read(make([]byte, 1)) // until it is refused
					_ = c.Close()
				}
				if st := limit.Stats(); st.Evicted != evicted {
					t.Errorf("%q: %+v, want a newcomer to be refused", said.first, st)
				}
				release <- struct{}{}
				resp, err := http.ReadResponse(bufio.NewReader(quick), nil)
				if err != nil || resp.StatusCode != http.StatusOK {
					t.Fatalf("%q: %v, %v", said.first, resp, err)
				}
				_ = resp.Body.Close()
				harness.Until(t, fmt.Sprintf("%q: no bytes are held after the answer", said.first),
					func() bool { return held.HeldBytes() == 0 })
				_ = slow.Close()
				_ = quick.Close()
			}
			if st := limit.Stats(); st.Refused != 3 {
				t.Errorf("%+v, want 3 refused", st)
			}
		})
	}
}
