// Package health asks the service on the same machine whether it is ready.
package health

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/output"
	"ratelimit/src/settings"
	"ratelimit/src/tools/command"
)

//go:embed help.txt
var help string

// maxAnswerBytes bounds how much of an answer is read.
const maxAnswerBytes = 4096

// defaultPort is that of an address without one: PORT of a service with default settings.
const defaultPort = "8080"

// LinePort is the port of a program that can serve in the place of `ratelimit serve`, and that needs no HTTP port.
type LinePort struct {
	Program    string
	ErrorReply string // how the reply to a line of HTTP starts; 4 bytes
	// Addr returns the port of a program that was started with env.
	Addr func(env settings.Environment) (host string, port int)
}

// Command returns `ratelimit health`. Where no HTTP port answers, it tries other.
func Command(other LinePort) *cobra.Command {
	var address string
	var timeout time.Duration
	cmd := command.New(help, nil, func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		answer, err := ask(ctx, address, settings.NewEnvironment(os.Environ()), other)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), answer)
		return err
	})
	f := cmd.Flags()
	f.StringVar(&address, "address", "", "the HTTP or the health port of a service, instead of that of the environment")
	command.Time(f, &timeout, "timeout", 2*time.Second, 0, "time limit, connecting included")
	return cmd
}

// port is an address that answers /healthcheck.
type port struct {
	variable string // the setting or the flag that names the port.
	host     string
	number   int
	tls      bool
	other    LinePort // may have the port instead.
}

// ask returns the answer of a service that is ready: that at address, or one that was started with env.
func ask(ctx context.Context, address string, env settings.Environment, other LinePort) (string, error) {
	if address != "" {
		u, err := debugport.ParseAddress(address, defaultPort)
		if err != nil {
			return "", command.InvalidInput(err)
		}
		number, _ := strconv.Atoi(u.Port()) // A URL's port is a number.
		return port{"--address", u.Hostname(), number, u.Scheme == "https", other}.get(ctx)
	}
	s, _, _ := settings.Read(env) // The service has refused to start if the settings are wrong, so nothing answers then.
	p := port{"PORT", s.Host, s.Port, s.HTTPTLS.Cert != "", other}
	if s.Health {
		p = port{"HEALTH_PORT", s.HealthHost, s.HealthPort, false, other}
	}
	answer, err := p.get(ctx)
	if s.Health || !errors.Is(err, syscall.ECONNREFUSED) {
		return answer, err
	}
	// `ratelimit serve` has opened PORT before all others, so this is the other program, or nothing.
	host, number := other.Addr(env)
	conn, dialErr := (&net.Dialer{}).DialContext(ctx, "tcp", port{host: host, number: number}.addr())
	if dialErr != nil {
		return "", err
	}
	_ = conn.Close() // Nothing was sent.
	return "OK: " + other.Program + "'s port is open", nil
}

// addr returns host:port, with the address of this machine if the port is open on all addresses.
func (p port) addr() string {
	host := cmp.Or(p.host, "0.0.0.0")
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.Is6() {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, strconv.Itoa(p.number))
}

// get returns the answer of /healthcheck. Its status is 200.
func (p port) get(ctx context.Context) (string, error) {
	if p.number == 0 {
		return "", fmt.Errorf("%s=0 lets the service choose a port that health cannot know: set HEALTH_PORT", p.variable)
	}
	conn, err := p.dial(ctx)
	if err != nil {
		return "", p.explain(err)
	}
	defer func() { _ = conn.Close() }() // All that matters has been read.
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // SetDeadline fails only if the connection is closed, and so does Write.
	}
	if _, err := io.WriteString(conn,
		"GET /healthcheck HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		return "", p.explain(err)
	}
	r := bufio.NewReader(io.LimitReader(conn, maxAnswerBytes))
	if begin, _ := r.Peek(4); string(begin) == p.other.ErrorReply { // The other program knows no GET.
		return "OK: " + p.other.Program + "'s port answers", nil
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return "", p.explain(err)
	}
	defer func() { _ = resp.Body.Close() }() // All that matters has been read.
	text, _ := io.ReadAll(resp.Body)         // The status is known without the text.
	said := output.Printable(strings.ToValidUTF8(strings.TrimSpace(string(text)), "?"))
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: status %d: %s", p.addr(), resp.StatusCode, cmp.Or(said, resp.Status))
	}
	return said, nil
}

func (p port) dial(ctx context.Context) (net.Conn, error) {
	if !p.tls {
		return (&net.Dialer{}).DialContext(ctx, "tcp", p.addr())
	}
	// The certificate is for the name that callers use, which is not the name of this connection. Nothing secret is sent.
	// see above
	return (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", p.addr()) //nolint:gosec
}

// explain says what to do about err, the error of a request without an answer.
func (p port) explain(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: no answer in time", p.addr())
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: %w: no service is on %s", p.addr(), syscall.ECONNREFUSED, p.variable)
	case p.tls:
		return fmt.Errorf("%s: %w: if HTTP_TLS_CLIENT_CACERT is set, set HEALTH_PORT", p.addr(), err)
	}
	return fmt.Errorf("%s: %w: is a rate limit service on %s?", p.addr(), err, p.variable)
}
