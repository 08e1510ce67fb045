// Package debugport asks the debug port of a service, or of several replicas.
package debugport

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
	// MaxReplicas bounds the addresses that are asked at the same time.
	MaxReplicas = 100
	// debugAddress is the debug port of a service on this machine with default settings.
	debugAddress = "localhost:6070"
	// tokenVariable is the environment variable with the token of a service.
	tokenVariable = "DEBUG_TOKEN"
	// maxErrorBytes is how much of an error's text is shown.
	maxErrorBytes = 1000
)

// Config says how to reach debug ports.
type Config struct {
	// DefaultPort is the port of addresses without one.
	DefaultPort string
	// Token returns what goes to each address that is asked, and to no other. Nil, and an empty text, are none.
	Token func() string
	// TLS returns the configuration of TLS, or nil for plain text. isHTTPS tells that the address is an https URL. name is
	// what the server's certificate must have; empty for the host of the address.
	TLS func(isHTTPS bool, name string) (*tls.Config, error)
	// Timeout bounds each request, connecting included.
	Timeout time.Duration
	// MaxAnswerBytes bounds how much of an answer is read. Defaults to 64 MiB.
	MaxAnswerBytes int64
	// MaxAnswerObjects bounds how many objects the JSON of an answer has, because they may take far more memory than their
	// text. 0: no bound.
	MaxAnswerObjects int
	// IgnoreProxy connects to the addresses themselves, whatever HTTP_PROXY says.
	IgnoreProxy bool
	Advice      Advice
}

// Advice is what errors say to do, in the words of the settings that the reader has.
type Advice struct {
	NoTLS     string // if the port does not use TLS.
	UseTLS    string // if it does.
	Authority string // if its certificate comes from an unknown authority.
	SetToken  string // if it needs a token and none is set.
}

// Client asks one debug port. It is safe for concurrent use.
type Client struct {
	// Address is the host and the port, for messages.
	Address string

	cfg  Config
	base url.URL
	http http.Client
}

// New returns a client for the debug port at address, whose certificate has the name; see Config.TLS. It does not
// connect.
func (cfg *Config) New(address, name string) (*Client, error) {
	base, err := ParseAddress(address, cfg.DefaultPort)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if cfg.IgnoreProxy {
		transport.Proxy = nil
	}
	if transport.TLSClientConfig, err = cfg.TLS(base.Scheme == "https", name); err != nil {
		return nil, err
	}
	if transport.TLSClientConfig != nil {
		base.Scheme = "https"
	}
	c := &Client{Address: base.Host, cfg: *cfg, base: *base}
	c.cfg.MaxAnswerBytes = cmp.Or(cfg.MaxAnswerBytes, maxAnswerBytes)
	c.http.Transport = transport
	// The token is for Address only.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// NewAll returns a client for each address of a list, whose elements are separated by commas. It does not connect.
func (cfg *Config) NewAll(ctx context.Context, list string) ([]*Client, error) {
	var addresses, names []string
	for address := range strings.SplitSeq(list, ",") {
		found, name, err := cfg.Resolve(ctx, strings.TrimSpace(address))
		if err != nil {
			return nil, err
		}
		addresses, names = append(addresses, found...), append(names, slices.Repeat([]string{name}, len(found))...)
	}
	if len(addresses) > MaxReplicas {
		return nil, fmt.Errorf("%d addresses: name at most %d", len(addresses), MaxReplicas)
	}
	clients := make([]*Client, len(addresses))
	for i, address := range addresses {
		var err error
		if clients[i], err = cfg.New(address, names[i]); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(clients[:i], func(c *Client) bool { return c.Address == clients[i].Address }) {
			return nil, fmt.Errorf("address %s: name each replica once", clients[i].Address)
		}
	}
	return clients, nil
}

// Resolve returns the addresses that dns:///name:port stands for, which are those of IPv4 if there are any, and the
// name in their certificates. Another address stands for itself.
func (cfg *Config) Resolve(ctx context.Context, address string) (list []string, name string, err error) {
	name, isDNS := strings.CutPrefix(address, "dns:///")
	if !isDNS {
		return []string{address}, "", nil
	}
	base, err := ParseAddress(name, cfg.DefaultPort)
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
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

// String returns the address as a URL.
func (c *Client) String() string { return c.base.String() }

// Close closes the connections that no request uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Get decodes the JSON that the service answers to a GET of path into answer. The error says what to do.
func (c *Client) Get(ctx context.Context, path string, query url.Values, answer any) error {
	return c.Do(ctx, http.MethodGet, path, query, nil, answer)
}

// Do sends a request with the JSON of body, unless that is nil, and decodes the JSON of the answer.
func (c *Client) Do(ctx context.Context, method, path string, query url.Values, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return c.send(ctx, request{method, path, query, body, "application/json"}, func(resp *http.Response) error {
		text, err := io.ReadAll(io.LimitReader(resp.Body, c.cfg.MaxAnswerBytes))
		if err != nil {
			return c.brokenOff(err)
		}
		if most := c.cfg.MaxAnswerObjects; int64(len(text)) == c.cfg.MaxAnswerBytes ||
			most > 0 && bytes.Count(text, []byte{'{'}) > most {
			return &Error{Status: resp.StatusCode, Err: fmt.Errorf("%s%s: the answer is too large", c.Address, path)}
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
		lines := bufio.NewScanner(io.LimitReader(resp.Body, c.cfg.MaxAnswerBytes))
		lines.Buffer(nil, int(c.cfg.MaxAnswerBytes))
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
	timer := time.AfterFunc(c.cfg.Timeout, func() { cancel(context.DeadlineExceeded) })
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
	if token := c.token(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
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

// IsNotFound reports that the service knows the page, and not what was asked for.
func (e *Error) IsNotFound() bool { return e.Status == http.StatusNotFound }

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
		return fmt.Errorf("%s: no answer within %v; is this a debug port that this machine may reach?", c.Address, c.cfg.Timeout)
	case isPlainText, strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		advice = "the port does not use TLS: " + c.cfg.Advice.NoTLS
	case strings.Contains(err.Error(), "malformed HTTP"), strings.Contains(err.Error(), spokeFirst):
		return fmt.Errorf("%s does not answer with HTTP/1; it may be the gRPC port: name the debug port, %s by default",
			c.Address, debugAddress)
	case isUntrusted:
		advice = c.cfg.Advice.Authority
	default:
		return fmt.Errorf("%s: %w", c.Address, err)
	}
	return fmt.Errorf("%s: %w: %s", c.Address, err, advice)
}

// token returns the token to send; empty for none.
func (c *Client) token() string {
	if c.cfg.Token == nil {
		return ""
	}
	return c.cfg.Token()
}

// explainStatus says what to do about a status other than 200. text is the body.
func (c *Client) explainStatus(resp *http.Response, path string, text []byte) error {
	first, _, _ := strings.Cut(string(bytes.TrimSpace(text)), "\n")
	said := output.Printable(strings.ToValidUTF8(cmp.Or(first, resp.Status), "?"))
	switch {
	case resp.StatusCode == http.StatusUnauthorized && c.token() == "":
		return fmt.Errorf("%s needs a token: %s", c.Address, c.cfg.Advice.SetToken)
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%s refuses the token: send the %s that the service was started with", c.Address, tokenVariable)
	case resp.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s has no %s (%s): name the debug port of a service that is as new as this program, %s by default",
			c.Address, path, said, debugAddress)
	case resp.StatusCode == http.StatusBadRequest && strings.Contains(said, "HTTP request to an HTTPS server"):
		return fmt.Errorf("%s uses TLS: %s", c.Address, c.cfg.Advice.UseTLS)
	}
	return fmt.Errorf("%s%s: status %d: %s", c.Address, path, resp.StatusCode, said)
}

// spokeFirst is in the error of net/http if the server sends something before the request, as servers of HTTP/2 do.
const spokeFirst = "readLoopPeekFailLocked: %!w(<nil>)"

// ParseAddress returns the URL of an address such as "localhost:6070", "10.0.0.7" or "https://rl.example".
func ParseAddress(address, defaultPort string) (*url.URL, error) {
	text := address
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("address %s: write host:port, such as localhost:%s, or https://host:port",
			output.Printable(address), defaultPort)
	case u.User != nil:
		return nil, fmt.Errorf("address of %s: leave out the password, which other users of this machine could read; set "+
			"%s or use --token-file", u.Host, tokenVariable)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
		return nil, fmt.Errorf("address %s: write only the host and the port, such as %s", output.Printable(address), u.Host)
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), defaultPort)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}
