// Package ports opens the ports of the service, and bounds their connections by the files and the memory that the
// process may use.
package ports

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/settings"
)

// Port is one address that the service listens on.
type Port struct {
	Name         string // in the log and in the names of metrics
	OpensAtStart bool
	AwaitsRules  bool   // a port that opens at the start lets clients connect when rules are in force, and not before
	AddrVariable string // the setting to change if the address is taken
	Address      string // host:port
	// IsOptional is set if the service runs without the port when its address cannot be used, as envoyproxy/ratelimit
	// does. A taken address is an error for all
	IsOptional     bool
	Socket         string // the path of a unix socket, which replaces addr if it is set.
	IsForOperators bool   // takes few connections
	MaxConns       int    // 0 for a port that is never opened
	capAdvice      string // how to have more connections, if a limit of the process lowered MaxConns; else empty
	// ConnLimits bounds connections. Nil: the server of the port does so itself.
	ConnLimits *connlimit.Config

	TLS         settings.ServerTLS
	TLSVariable string      // the setting of the certificate, for errors
	ALPN        []string    // the protocols that TLS negotiates
	TLSConfig   *tls.Config // nil if the port speaks plain text

	net.Listener               // nil if the port is not open
	late         *lateListener // what Listener wraps if the port awaits rules, else nil
}

// HostPort returns host:port.
func HostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// List are the ports of a service, in the order in which they are opened.
type List []*Port

// Opened lists the ports that are open.
func (l List) Opened() []*Port {
	return slices.DeleteFunc(slices.Clone(l), func(p *Port) bool { return p.Listener == nil })
}

// Open opens the ports that are on, until one fails; call Close then. It calls onMissing for an optional port that
// cannot be opened. Ports that await rules get their address, and clients cannot connect to them before OpenForCallers.
func (l List) Open(onMissing func(error)) error {
	for _, p := range l {
		if !p.OpensAtStart {
			continue
		}
		l, err := p.Listen(context.Background())
		switch {
		case err == nil:
			p.Listener = l
		case p.IsOptional && !errors.Is(err, syscall.EADDRINUSE):
			variables := p.AddrVariable
			if name, isPort := strings.CutSuffix(variables, "_PORT"); isPort {
				variables = name + "_HOST or " + variables
			}
			onMissing(fmt.Errorf("%w; the service runs without that port: correct %s", err, variables))
		default:
			return err
		}
	}
	return nil
}

// OpenForCallers lets clients connect to the ports that await rules, and returns those that were not open before.
func (l List) OpenForCallers() (opened []*Port, _ error) {
	for _, p := range l.Opened() {
		if p.late == nil {
			continue
		}
		isNew, err := p.late.open()
		if err != nil {
			return nil, p.explainError(err)
		}
		if isNew {
			opened = append(opened, p)
		}
	}
	return opened, nil
}

// Close closes all open ports. Servers have closed most of them before.
func (l List) Close() error {
	for _, p := range l.Opened() {
		_ = p.Close() // Close fails if the server of the port has closed it already.
	}
	return nil
}

// Addresses returns the addresses of the open ports, by name.
func (l List) Addresses() map[string]any {
	fields := make(map[string]any)
	for _, p := range l.Opened() {
		fields[p.Name] = p.Addr().String()
	}
	return fields
}

// Listen opens the port and bounds its connections. It does not set p.Listener.
func (p *Port) Listen(ctx context.Context) (net.Listener, error) {
	l, err := p.bind(ctx)
	switch {
	case err != nil:
		return nil, p.explainError(err)
	case p.ConnLimits == nil:
		return l, nil
	}
	cfg := *p.ConnLimits
	cfg.MaxConnections, cfg.UnreadTimeout = p.MaxConns, unreadAnswerTimeout
	if p.TLS.On {
		cfg.GreetingWrites += tlsHandshakeWrites
	}
	return connlimit.New(l, cfg), nil
}

// bind takes the address of the port, and sets p.late if the port awaits rules.
func (p *Port) bind(ctx context.Context) (net.Listener, error) {
	switch {
	case p.Socket != "":
		if err := removeUnusedSocket(ctx, p.Socket); err != nil {
			return nil, err
		}
		p.late = newLateListener(lateUnixSocket{p.Socket})
	case p.OpensAtStart && p.AwaitsRules:
		socket, err := bindTCP(p.Address)
		if err != nil {
			return nil, err
		}
		p.late = newLateListener(socket)
	default:
		return new(net.ListenConfig).Listen(ctx, "tcp", p.Address)
	}
	return p.late, nil
}

// IsLate reports whether the open port lets clients connect when rules are in force, and not before.
func (p *Port) IsLate() bool { return p.late != nil }

// explainError returns the error for a port that cannot be opened because of err.
func (p *Port) explainError(err error) error {
	switch {
	case p.Socket != "":
		return fmt.Errorf("GRPC_UDS: %w", err)
	case errors.Is(err, syscall.EADDRINUSE):
		return takenError{fmt.Sprintf("the %s port %s is taken: stop what listens there, or set %s", p.Name, p.Address,
			p.AddrVariable)}
	default:
		return fmt.Errorf("the %s port: %w", p.Name, err)
	}
}

// takenError is an EADDRINUSE with a better text.
type takenError struct{ text string }

func (e takenError) Error() string { return e.text }

func (takenError) Unwrap() error { return syscall.EADDRINUSE }

// removeUnusedSocket removes the socket file of a process that ended. A file on which a process answers is an error.
func removeUnusedSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil // Listening creates the file, or returns the error.
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is no socket: remove it, or name another path", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close() // A connection that opens shows that a process listens on the socket.
	}
	if !errors.Is(err, syscall.ECONNREFUSED) { // A process that is too busy to answer still owns the socket.
		return fmt.Errorf("%s is taken: stop what listens there, or name another path", path)
	}
	return os.Remove(path)
}
