package resp

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Access has the passwords of clients and of operators.
type Access struct {
	// Password is what clients must send with AUTH before other commands. Empty: nothing.
	Password string
	// OperatorToken makes a client that sends it with AUTH an operator. Empty: clients on this host are operators.
	OperatorToken string
	// AddAttempt counts an attempt to authenticate, and returns how long the client must wait if it has made too many.
	// ForgiveAttempt takes the last one back, because the password was right. Both are required if Password or
	// OperatorToken is set.
	AddAttempt     func(client net.Addr) time.Duration
	ForgiveAttempt func(client net.Addr)
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
	switch {
	case a.Password != "":
		return mayAuthenticate
	case a.OperatorToken == "" && isLoopback(client):
		return mayOperate
	}
	return mayAsk
}

func isLoopback(client net.Addr) bool {
	tcp, ok := client.(*net.TCPAddr)
	if !ok {
		return false
	}
	ip, ok := netip.AddrFromSlice(tcp.IP)
	return ok && ip.Unmap().IsLoopback()
}

var (
	errNoAuth    = &replyError{codeNoAuth, "Authentication required."}
	errWrongPass = &replyError{codeWrongPass, "invalid username-password pair or user is disabled."}
)

// authenticate returns the rights of a client that sends a password.
func (a *Access) authenticate(client net.Addr, password []byte) (rights, *replyError) {
	if a.Password == "" && a.OperatorToken == "" {
		return 0, &replyError{codeERR, "AUTH <password> called without any password configured: set RESP_PASSWORD, or " +
			"DEBUG_TOKEN for operators"}
	}
	if wait := a.AddAttempt(client); wait > 0 {
		return 0, &replyError{
			codeWrongPass,
			fmt.Sprintf("too many wrong passwords came from this address; wait for %v", wait.Round(time.Second)),
		}
	}
	var granted rights
	switch {
	case isSecret(password, a.OperatorToken):
		granted = mayOperate
	case isSecret(password, a.Password):
		granted = mayAsk
		if a.OperatorToken == "" && isLoopback(client) {
			granted = mayOperate
		}
	default:
		return 0, errWrongPass
	}
	a.ForgiveAttempt(client)
	return granted, nil
}

// isSecret compares in constant time. Nothing equals an empty secret.
func isSecret(sent []byte, secret string) bool {
	got, want := sha256.Sum256(sent), sha256.Sum256([]byte(secret)) // Hashes have the same length.
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && secret != ""
}
