package redis

import (
	"bytes"
	"context"
	"errors"
	"net"

	"github.com/mediocregopher/radix/v4"
	"github.com/mediocregopher/radix/v4/resp"
	"github.com/mediocregopher/radix/v4/resp/resp3"

	"ratelimit/src/backend/remote"
)

// opener implements remote.Opener for servers that share credentials and a database.
type opener struct {
	network     string
	credentials func() (user, password string, err error)
	database    string
	// needPrimary says that replicas are refused.
	needPrimary bool
}

// errNotPrimary is the error of a replica where a primary is needed.
var errNotPrimary = errors.New("it is a replica, not a primary")

func (o *opener) Network(string) string { return o.network }

// Open sends AUTH, SELECT and ROLE as needed.
func (o *opener) Open(c *remote.Conn) error {
	user, password := "", ""
	if o.credentials != nil {
		var err error
		if user, password, err = o.credentials(); err != nil {
			return err
		}
	}
	var commands []radix.Action
	switch {
	case user != "":
		commands = append(commands, radix.Cmd(nil, "AUTH", user, password))
	case password != "":
		commands = append(commands, radix.Cmd(nil, "AUTH", password))
	}
	if o.database != "" && o.database != "0" { // Database 0 is selected anyway, and some proxies do not support SELECT.
		commands = append(commands, radix.Cmd(nil, "SELECT", o.database))
	}
	for _, command := range commands {
		if err := (radixConn{c}).perform(command); err != nil {
			return err
		}
	}
	if o.needPrimary {
		return checkPrimary(c)
	}
	return nil
}

// checkPrimary returns errNotPrimary if the server says that it is a replica. A server that
// refuses ROLE, as many ACLs do, may be a primary; a replica would answer READONLY later.
func checkPrimary(c *remote.Conn) error {
	reply, err := exchangeCommand(c, "ROLE")
	if err != nil {
		return err
	}
	role, err := replyList(reply, "ROLE")
	switch {
	case isErrorReply(err):
		return nil
	case len(role) > 0 && role[0] != "master":
		return errNotPrimary
	}
	return err
}

func (*opener) Ping(c *remote.Conn) error { return radixConn{c}.perform(radix.Cmd(nil, "PING")) }

func (*opener) IsServerReply(err error) bool {
	return errors.Is(err, errNotPrimary) || errorReplyWord(err) != ""
}

// radixConn is a radix.Conn that writes and reads in the goroutine of its caller. Those that
// radix dials have two more goroutines, which must be woken for each batch.
type radixConn struct{ *remote.Conn }

// perform sends the commands of a and reads their replies.
func (c radixConn) perform(a radix.Action) error { return a.Perform(context.Background(), c) }

func (c radixConn) Addr() net.Addr { return c.RemoteAddr() }

func (c radixConn) Do(ctx context.Context, a radix.Action) error { return a.Perform(ctx, c) }

// EncodeDecode writes command and reads reply.
func (c radixConn) EncodeDecode(_ context.Context, command, reply any) error {
	var b bytes.Buffer
	opts := resp.NewOpts()
	if err := resp3.Marshal(&b, command, opts); err != nil {
		return err
	}
	if _, err := c.Write(b.Bytes()); err != nil {
		return err
	}
	return resp3.Unmarshal(c.Replies, reply, opts)
}
