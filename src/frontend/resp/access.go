package resp

import (
	"fmt"
	"net"
	"time"

	"ratelimit/src/frontend/access"
)

// Access has the passwords of clients and of operators.
type Access struct {
	// Passwords are what clients must send with AUTH before other commands. Nil: nothing.
	Passwords access.Secrets
	// OperatorTokens make a client that sends one with AUTH an operator. Nil: clients on this host are operators.
	OperatorTokens access.Secrets
	// Attempts bounds wrong passwords. It is required if Passwords or OperatorTokens are set.
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
	if a.Passwords != nil {
		return mayAuthenticate
	}
	return a.rightsOf(client)
}

// rightsOf returns the rights of a client that has sent the password, if there is one.
func (a *Access) rightsOf(client net.Addr) rights {
	if a.OperatorTokens == nil && access.IsOnThisHost(client.String()) {
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
	if a.Passwords == nil && a.OperatorTokens == nil {
		return 0, errorf("AUTH <password> called without any password configured: set RESP_PASSWORD, or DEBUG_TOKEN for " +
			"operators")
	}
	if wait := a.Attempts.Add(client.String()); wait > 0 {
		return 0, &replyError{codeWrongPass, fmt.Sprintf("too many wrong passwords came from this address; wait for %v",
			wait.Round(time.Second))}
	}
	var granted rights
	switch {
	case access.IsSecret(password, a.OperatorTokens):
		granted = mayOperate
	case access.IsSecret(password, a.Passwords):
		granted = a.rightsOf(client)
	default:
		return 0, errWrongPass
	}
	a.Attempts.Forgive(client.String())
	return granted, nil
}
