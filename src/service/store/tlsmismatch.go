package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// storeTLSCheck finds out why a store does not answer: perhaps only one of the service and the store uses TLS, which
// neither is told.
type storeTLSCheck struct {
	network, addr string // the first address of the store.
	isOn          bool   // true if the service uses TLS.
	setting       string // the variable that turns TLS on, such as REDIS_TLS.
}

// tlsCheckInterval is the shortest time between two checks of a store.
const tlsCheckInterval = time.Minute

// advice returns what is wrong and what to do about it; "" if TLS is not the problem. It opens one connection, on which
// it sends no password. ctx must have a deadline.
func (c *storeTLSCheck) advice(ctx context.Context) string {
	conn, err := new(net.Dialer).DialContext(ctx, c.network, c.addr)
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if conn.SetDeadline(deadline) != nil {
		return ""
	}
	switch {
	case !c.isOn && speaksTLS(ctx, conn):
		return fmt.Sprintf("%s speaks TLS and the service does not: set %s=true, or name a port without TLS", c.addr,
			c.setting)
	case c.isOn && speaksPlainText(conn):
		return fmt.Sprintf("%s does not speak TLS and the service does: set %s=false, or name the port for TLS", c.addr,
			c.setting)
	}
	return ""
}

// speaksTLS reports whether the store answers a TLS handshake, whatever its certificate.
func speaksTLS(ctx context.Context, conn net.Conn) bool {
	err := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx)
	alert := new(net.OpError)
	return err == nil || errors.As(err, &alert) && alert.Op == "remote error"
}

// speaksPlainText reports whether the store answers a line of text. To PING, Redis answers PONG or an error, and
// Memcached ERROR.
func speaksPlainText(conn net.Conn) bool {
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	first := make([]byte, 1)
	n, _ := conn.Read(first) // An error is an answer that did not come.
	return n == 1 && strings.Contains("+-E", string(first))
}
