package redistest

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/mediocregopher/radix/v4/resp"
	"github.com/mediocregopher/radix/v4/resp/resp3"

	"ratelimit/testbed/harness"
)

// Error is an error reply, its code first: "WRONGTYPE Operation against …".
type Error string

func (e Error) Error() string { return string(e) }

// Code is the reply's first word, such as MOVED.
func (e Error) Code() string {
	code, _, _ := strings.Cut(string(e), " ")
	return code
}

// DialOptions configure a connection. The zero value is plain TCP without a password.
type DialOptions struct {
	User     string // the user; "" means the default user
	Password string // the password; Dial sends no AUTH if User and Password are empty

	TLS     *tls.Config   // the client's configuration; nil means plain TCP
	Timeout time.Duration // the timeout of Dial, and of each Send and Receive; 0 means 5 s
}

// Client is a connection that speaks RESP2, for one goroutine. Unlike the clients of libraries it stays usable after a
// timeout, so a late reply can still be received.
type Client struct {
	conn    net.Conn
	in      *bufio.Reader
	timeout time.Duration
}

// Dial connects to host:port or to the path of a Unix socket.
func Dial(addr string, o DialOptions) (*Client, error) {
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	var conn net.Conn
	var err error
	dialer := &net.Dialer{Timeout: o.Timeout}
	if o.TLS != nil {
		conn, err = tls.DialWithDialer(dialer, harness.Network(addr), addr, o.TLS)
	} else {
		conn, err = dialer.Dial(harness.Network(addr), addr)
	}
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn, in: bufio.NewReader(conn), timeout: o.Timeout}
	switch {
	case o.User != "":
		_, err = c.Do("AUTH", o.User, o.Password)
	case o.Password != "":
		_, err = c.Do("AUTH", o.Password)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("AUTH at %s: %w", addr, err), c.Close())
	}
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Do sends one command and returns its reply: a string, an int64, nil or a slice of these. An error reply is an Error;
// inside a slice it is an element. Arguments are strings, byte slices, or what fmt.Sprint makes of them.
func (c *Client) Do(args ...any) (any, error) {
	if err := c.Send(args...); err != nil {
		return nil, err
	}
	return c.Receive()
}

// Send writes one command and does not wait for its reply: several Sends and as many Receives are a pipeline.
func (c *Client) Send(args ...any) error {
	out := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		if b, ok := arg.([]byte); ok {
			arg = string(b)
		}
		text := fmt.Sprint(arg)
		out = fmt.Appendf(out, "$%d\r\n%s\r\n", len(text), text)
	}
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.timeout)); err != nil {
		return err
	}
	_, err := c.conn.Write(out)
	return err
}

// Receive waits for one reply.
func (c *Client) Receive() (any, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
		return nil, err
	}
	var reply any
	err := resp3.Unmarshal(c.in, &reply, resp.NewOpts())
	if e, ok := errors.AsType[resp3.SimpleError](err); ok {
		return nil, Error(e.S)
	}
	return plainReply(reply), err
}

// plainReply returns a reply of resp3.Unmarshal as Client.Do returns it.
func plainReply(reply any) any {
	switch r := reply.(type) {
	case []byte:
		if r == nil {
			return nil
		}
		return string(r)
	case []any:
		for i := range r {
			r[i] = plainReply(r[i])
		}
	case error:
		return Error(r.Error())
	}
	return reply
}
