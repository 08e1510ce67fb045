package redis

import (
	"errors"

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
	var commands [][]string
	switch {
	case user != "":
		commands = append(commands, []string{"AUTH", user, password})
	case password != "":
		commands = append(commands, []string{"AUTH", password})
	}
	if o.database != "" && o.database != "0" { // Database 0 is selected anyway, and some proxies do not support SELECT.
		commands = append(commands, []string{"SELECT", o.database})
	}
	for _, words := range commands {
		if err := sendCommand(c, words...); err != nil {
			return err
		}
	}
	if o.needPrimary {
		return checkPrimary(c)
	}
	return nil
}

// sendCommand sends a command whose reply matters only if it is an error.
func sendCommand(c *remote.Conn, words ...string) error {
	reply, err := exchangeCommand(c, words...)
	if e, isError := reply.(Error); isError {
		return e
	}
	return err
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

func (*opener) Ping(c *remote.Conn) error { return sendCommand(c, "PING") }

func (*opener) IsServerReply(err error) bool {
	return errors.Is(err, errNotPrimary) || errorReplyWord(err) != ""
}
