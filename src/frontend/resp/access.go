package resp

import (
	"fmt"
	"net"
	"time"

	"ratelimit/src/frontend/access"
)

// Access has the passwords of clients and of operators.
type Access struct {
	// Password is what clients must send with AUTH before other commands. Empty: nothing.
	Password string
	// OperatorToken makes a client that sends it with AUTH an operator. Empty: clients on this host are operators.
	OperatorToken string
	// Attempts bounds wrong passwords. It is required if Password or OperatorToken is set.
	Attempts *access.Attempts
}

// rights are what a client may do.
type rights uint8

const (
	mayAuthenticate rights = iota
	mayAsk
	mayOperate
)

// initialRights returns the rights of a client that has sent no password.
func (a *Access) initialRights(client net.Addr) rights {
	if a.Password != "" {
		return mayAuthenticate
	}
	return a.rightsOf(client)
}

// rightsOf returns the rights of a client that has sent the password, if there is one.
func (a *Access) rightsOf(client net.Addr) rights {
	if a.OperatorToken == "" && access.IsOnThisHost(client.String()) {
		return mayOperate
	}
	return mayAsk
}

var (
	errNoAuth    = &replyError{codeNoAuth, "Authentication required."}
	errWrongPass = &replyError{codeWrongPass, "invalid username-password pair or user is disabled."}
)

// authenticate returns the rights of a client that sends a password.
func (a *Access) authenticate(client net.Addr, password []byte) (rights, *replyError) {
	if a.Password == "" && a.OperatorToken == "" {
		return 0, errorf("AUTH <password> called without any password configured: set RESP_PASSWORD, or DEBUG_TOKEN for " +
			"operators")
	}
	if wait := a.Attempts.Add(client.String()); wait > 0 {
		return 0, &replyError{codeWrongPass, fmt.Sprintf("too many wrong passwords came from this address; wait for %v",
			wait.Round(time.Second))}
	}
	var granted rights
	switch {
	case access.IsSecret(password, a.OperatorToken):
		granted = mayOperate
	case access.IsSecret(password, a.Password):
		granted = a.rightsOf(client)
	default:
		return 0, errWrongPass
	}
	a.Attempts.Forgive(client.String())
	return granted, nil
}
