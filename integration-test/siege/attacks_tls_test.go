//go:build linux

package siege

import (
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/testbed/harness"
)

// Attacks on ports with TLS. They attack the RESP port, so that neighbours and probes need no TLS.
var tlsAttacks = []attack{
	{
		letter: "D", name: "long TLS handshakes", prepare: prepareTLS, strike: longHandshakes,
		does: "connections whose TLS handshakes of 60 KB name 20,000 protocols; half of them wait in it",
	},
	{
		letter: "D", name: "idle connections with TLS", prepare: prepareTLS, strike: idleTLS,
		does: "as many as the port takes, each with a part of a record of TLS",
	},
}

// prepareTLS makes the RESP port speak TLS.
func prepareTLS(x *trial, o *options) {
	certs := harness.NewCertificates(x.T)
	x.state = certs.AnyServer
	o.env = append(slices.Clone(o.env), "RESP_TLS_CERT="+certs.Server.Cert, "RESP_TLS_KEY="+certs.Server.Key)
}

// fillSecurely opens n connections to the RESP port, 16 at a time, and uses each. It returns them, and how many of the
// uses failed.
func (x *trial) fillSecurely(n int, use func(i int, c net.Conn) error) (open []net.Conn, failed int64) {
	open = fillPort(x.service.resp, n)
	var users sync.WaitGroup
	var failures, next atomic.Int64
	for range 16 {
		users.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(open)) && x.ctx.Err() == nil; i = next.Add(1) - 1 {
				_ = open[i].SetDeadline(time.Now().Add(x.deadline)) // If it fails, so does the use.
				if use(int(i), open[i]) != nil {
					failures.Add(1)
				}
			}
		})
	}
	users.Wait()
	return open, failures.Load()
}

func longHandshakes(x *trial) {
	cfg := x.state.(*tls.Config)
	open, failed := x.fillSecurely(pick(x, 200, 1500), func(i int, c net.Conn) error {
		if i%2 == 0 {
			return secure(c, cfg, slices.Repeat([]string{strings.Repeat("x", 255)}, 235)...).Handshake()
		}
		_ = secure(noAnswers{c}, cfg, slices.Repeat([]string{"h2"}, 20_000)...).Handshake() // It fails after the ClientHello.
		return nil
	})
	defer leave(open)
	x.awaitSample()
	x.note("%d connections, %d of them were closed before their handshake had ended", len(open), failed)
}

func idleTLS(x *trial) {
	cfg := x.state.(*tls.Config)
	open, failed := x.fillSecurely(pick(x, 200, 1000), func(_ int, c net.Conn) error {
		secured := secure(c, cfg)
		_, err := secured.Write([]byte(strings.Repeat(array("PING"), 1000)))
		half := append([]byte{23, 3, 3, 65, 0}, make([]byte, 16<<10)...)
		_, sent := c.Write(half)
		return errors.Join(err, sent)
	})
	defer leave(open)
	x.awaitSample()
	x.note("%d connections, %d of them were closed", len(open), failed)
}
