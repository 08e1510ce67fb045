package redis

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/mediocregopher/radix/v4"
	"github.com/mediocregopher/radix/v4/resp"
	"github.com/mediocregopher/radix/v4/resp/resp3"

	"ratelimit/src/backend/redis/credentials"
	"ratelimit/src/backend/remote"
)

// opener implements remote.Opener for servers that share credentials and a database.
type opener struct {
	network     string
	credentials credentials.Source // nil: no AUTH
	database    string
	// needPrimary says that replicas are refused.
	needPrimary bool
}

// noTokenError is the error of a connection that opens while there is nothing to authenticate with.
type noTokenError struct{ reason error }

func (e *noTokenError) Error() string { return "nothing to authenticate with: " + e.reason.Error() }

var errNotPrimary = errors.New("it is a replica, not a primary")

func (o *opener) Network(string) string { return o.network }

// Open sends AUTH, SELECT and ROLE as needed.
func (o *opener) Open(ctx context.Context, c *remote.Conn) error {
	if o.credentials != nil {
		t, err := o.credentials.Token(ctx)
		if err != nil {
			return &noTokenError{err}
		}
		if err := o.authenticate(c, t); err != nil {
			return err
		}
	}
	if o.database != "" && o.database != "0" { // Database 0 is selected anyway, and some proxies do not support SELECT.
		if err := (radixConn{c}).perform(radix.Cmd(nil, "SELECT", o.database)); err != nil {
			return err
		}
	}
	if o.needPrimary {
		return checkPrimary(c)
	}
	return nil
}

// authenticate sends AUTH with t, if t needs that, and notes when c needs another token.
func (o *opener) authenticate(c *remote.Conn, t credentials.Token) error {
	command := radix.Cmd(nil, "AUTH", t.User, t.Password)
	switch {
	case t.User == "" && t.Password == "":
		return nil
	case t.User == "":
		command = radix.Cmd(nil, "AUTH", t.Password)
	}
	if err := (radixConn{c}).perform(command); err != nil {
		if replyCauses[errorReplyWord(err)] == causeAuth {
			o.credentials.Refused()
		}
		return withoutSecret(err, t.Password)
	}
	c.ValidUntil, c.RenewAt = t.Expires, credentials.RenewalTime(time.Now(), t.Expires)
	return nil
}

// quotedSecretBytes is how many bytes of a secret a reply may quote, which are some of the first ones.
const quotedSecretBytes = 8

// withoutSecret returns the error of AUTH, without its text if that quotes the secret, as replies to an unknown command
// do.
func withoutSecret(err error, secret string) error {
	start := secret[:min(len(secret), quotedSecretBytes)]
	if word := errorReplyWord(err); word != "" && start != "" && strings.Contains(err.Error(), start) {
		return Error(word + " the reply to AUTH quotes the password, so it is not shown")
	}
	return err
}

// Renew sends AUTH with another token, if there is one that expires later. If the server refuses it, the connection
// keeps the user that it has.
func (o *opener) Renew(c *remote.Conn) error {
	c.RenewAt = credentials.RetryTime(time.Now(), c.ValidUntil)
	t, ok := o.credentials.Renewed(c.ValidUntil)
	if !ok {
		return nil
	}
	if err := o.authenticate(c, t); err != nil && !o.IsServerReply(err) {
		return err
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
