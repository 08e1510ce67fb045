package reach

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"ratelimit/src/operator/output"
)

const (
	// maxAnswerBytes bounds how much of an answer is read.
	maxAnswerBytes = 64 << 20
	// maxReplicas bounds the addresses that a command asks at the same time.
	maxReplicas = 100
	// maxErrorBytes is how much of an error's text is shown.
	maxErrorBytes = 1000
)

// Client asks one debug port. It is safe for concurrent use.
type Client struct {
	// Address is the host and the port, for messages.
	Address string

	base    url.URL
	token   string
	timeout time.Duration
	http    http.Client
}

// newClient returns a client for the debug port. It does not connect.
func (s *Service) newClient() (*Client, error) {
	if strings.Contains(s.address, ",") {
		return nil, fmt.Errorf("address %s: name one replica for this command", output.Printable(s.address))
	}
	return s.newClientOf(s.address)
}

// newClients returns a client for each address in the list of the flag. It does not connect.
func (s *Service) newClients(ctx context.Context) ([]*Client, error) {
	var addresses, names []string
	for address := range strings.SplitSeq(s.address, ",") {
		found, name, err := s.resolve(ctx, strings.TrimSpace(address))
		if err != nil {
			return nil, err
		}
		addresses, names = append(addresses, found...), append(names, slices.Repeat([]string{name}, len(found))...)
	}
	if len(addresses) > maxReplicas {
		return nil, fmt.Errorf("%d addresses: name at most %d", len(addresses), maxReplicas)
	}
	clients := make([]*Client, len(addresses))
	for i, address := range addresses {
		s.files.ServerName = names[i]
		var err error
		if clients[i], err = s.newClientOf(address); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(clients[:i], func(c *Client) bool { return c.Address == clients[i].Address }) {
			return nil, fmt.Errorf("address %s: name each replica once", clients[i].Address)
		}
	}
	return clients, nil
}

// resolve returns the addresses that dns:///name:port stands for, which are those of IPv4 if there are any, and the
// name in their certificates. Another address stands for itself.
func (s *Service) resolve(ctx context.Context, address string) (list []string, name string, err error) {
	name, isDNS := strings.CutPrefix(address, "dns:///")
	if !isDNS {
		return []string{address}, "", nil
	}
	base, err := ParseAddress(name, s.defaultPort)
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", base.Hostname())
	if err != nil {
		return nil, "", fmt.Errorf("address %s: %w", output.Printable(address), err)
	}
	slices.SortFunc(found, netip.Addr.Compare)
	for _, ip := range found { // Those of IPv4 come first.
		if list == nil || ip.Unmap().Is4() == found[0].Unmap().Is4() {
			list = append(list, net.JoinHostPort(ip.Unmap().String(), base.Port()))
		}
	}
	return list, base.Hostname(), nil
}

func (s *Service) newClientOf(address string) (*Client, error) {
	base, err := ParseAddress(strings.TrimSuffix(address, "/explain"), s.defaultPort) // As links to an explanation end.
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if transport.TLSClientConfig, err = s.tls(base.Scheme == "https"); err != nil {
		return nil, err
	}
	if transport.TLSClientConfig != nil {
		base.Scheme = "https"
	}
	c := &Client{Address: base.Host, base: *base, timeout: s.Timeout}
	if c.token, err = s.readToken(); err != nil {
		return nil, err
	}
	c.http.Transport = transport
	// The token is for Address only.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// Get decodes the JSON that the service answers to a GET of path into answer. The error says what to do.
func (c *Client) Get(ctx context.Context, path string, query url.Values, answer any) error {
	return c.Do(ctx, http.MethodGet, path, query, nil, answer)
}

// Do sends a request with the JSON of body, unless that is nil, and decodes the JSON of the answer.
func (c *Client) Do(ctx context.Context, method, path string, query url.Values, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return c.send(ctx, request{method, path, query, body, "application/json"}, func(resp *http.Response) error {
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
		if err != nil {
			return c.brokenOff(err)
		}
		if err := json.Unmarshal(text, answer); err != nil {
			return &Error{Status: resp.StatusCode, Err: fmt.Errorf(
				"%s%s does not answer with the JSON of a rate limit service (%w); name its debug port, %s by default",
				c.Address, path, err, debugAddress)}
		}
		return nil
	})
}

// Stream sends a request as Do does, and calls line with each line of the answer, until line returns an error. There is
// no time limit but ctx: the service may work for long between two lines.
func (c *Client) Stream(ctx context.Context, method, path string, body any, line func(text []byte) error) error {
	return c.send(ctx, request{method, path, nil, body, "application/x-ndjson"}, func(resp *http.Response) error {
		lines := bufio.NewScanner(io.LimitReader(resp.Body, maxAnswerBytes))
		lines.Buffer(nil, maxAnswerBytes)
		for lines.Scan() {
			if err := line(lines.Bytes()); err != nil {
				return err
			}
		}
		if err := lines.Err(); err != nil {
			return c.brokenOff(err)
		}
		return nil
	})
}

func (c *Client) brokenOff(err error) error {
	return &Error{Temporary: true, Err: fmt.Errorf("%s: the answer broke off: %w", c.Address, err)}
}

// Open sends a GET of path, and calls read with the answer, whose body may go on until ctx ends. The time limit is for
// the beginning of the answer. Errors of read are returned as they are.
func (c *Client) Open(ctx context.Context, path string, query url.Values, accept string,
	read func(*http.Response) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(c.timeout, func() { cancel(context.DeadlineExceeded) })
	defer timer.Stop()
	return c.send(ctx, request{http.MethodGet, path, query, nil, accept}, func(resp *http.Response) error {
		timer.Stop()
		return read(resp)
	})
}

// patience is how long Each waits for the other replicas when one has answered.
const patience = time.Second

var errSlow = fmt.Errorf("no answer within %v of the first replica's", patience)

// Each calls ask for n replicas at the same time, and returns the errors. When one call has returned nil, the context
// of the others soon ends.
func Each(ctx context.Context, n int, ask func(ctx context.Context, i int) error) []error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, n)
	var group sync.WaitGroup
	var first sync.Once
	var timer *time.Timer // set by first
	for i := range n {
		group.Go(func() {
			if errs[i] = ask(ctx, i); errs[i] == nil {
				first.Do(func() { timer = time.AfterFunc(patience, func() { cancel(errSlow) }) })
			}
		})
	}
	group.Wait()
	if timer != nil {
		timer.Stop()
	}
	return errs
}

// request is a request for the debug port. body is sent as JSON unless it is nil.
type request struct {
	method, path string
	query        url.Values
	body         any
	accept       string // the type of the answer
}

// send sends r, and calls read with an answer that has the status 200.
func (c *Client) send(ctx context.Context, r request, read func(*http.Response) error) error {
	u := c.base
	u.Path, u.RawQuery = r.path, r.query.Encode()
	var content io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), content)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", r.accept)
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return &Error{Temporary: true, Err: c.explainNoAnswer(err)}
	}
	defer func() { _ = resp.Body.Close() }() // All that matters has been read.
	if resp.StatusCode == http.StatusOK {
		return read(resp)
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBytes)) // The status is known without the text.
	return &Error{Status: resp.StatusCode, Temporary: resp.StatusCode >= 500, Err: c.explainStatus(resp, r.path, text)}
}

// Error is the error of a request.
type Error struct {
	Status    int   // the HTTP status; 0 if there was no answer
	Temporary bool  // The same request may succeed later.
	Err       error // says what failed, and what to do
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// explainNoAnswer says what to do about err, the error of a request without an answer.
func (c *Client) explainNoAnswer(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // The URL adds nothing to the address.
	}
	var advice string
	_, isPlainText := errors.AsType[tls.RecordHeaderError](err)
	_, isUntrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: connection refused: start the service, or name its debug port (DEBUG_PORT)", c.Address)
	case errors.Is(err, errSlow):
		return fmt.Errorf("%s: %w", c.Address, errSlow)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: no answer within %v; is this a debug port that this machine may reach?", c.Address, c.timeout)
	case isPlainText, strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		advice = "the port does not use TLS: leave out --tls and https://"
	case strings.Contains(err.Error(), "malformed HTTP"), strings.Contains(err.Error(), spokeFirst):
		return fmt.Errorf("%s does not answer with HTTP/1; it may be the gRPC port: name the debug port, %s by default",
			c.Address, debugAddress)
	case isUntrusted:
		advice = "name the authority of the service's certificate with --tls-ca"
	default:
		return fmt.Errorf("%s: %w", c.Address, err)
	}
	return fmt.Errorf("%s: %w: %s", c.Address, err, advice)
}

// explainStatus says what to do about a status other than 200. text is the body.
func (c *Client) explainStatus(resp *http.Response, path string, text []byte) error {
	first, _, _ := strings.Cut(string(bytes.TrimSpace(text)), "\n")
	said := output.Printable(strings.ToValidUTF8(cmp.Or(first, resp.Status), "?"))
	switch {
	case resp.StatusCode == http.StatusUnauthorized && c.token == "":
		return fmt.Errorf("%s needs a token: set %s, or name a file that has it with --token-file", c.Address, tokenVariable)
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s refuses the token: send the %s that the service was started with", c.Address, tokenVariable)
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s has no %s (%s): name the debug port of a service that is as new as this program, %s by default",
			c.Address, path, said, debugAddress)
	case resp.StatusCode == http.StatusBadRequest && strings.Contains(said, "HTTP request to an HTTPS server"):
		return fmt.Errorf("%s uses TLS: add --tls", c.Address)
	}
	return fmt.Errorf("%s%s: status %d: %s", c.Address, path, resp.StatusCode, said)
}

// spokeFirst is in the error of net/http if the server sends something before the request, as servers of HTTP/2 do.
const spokeFirst = "readLoopPeekFailLocked: %!w(<nil>)"
