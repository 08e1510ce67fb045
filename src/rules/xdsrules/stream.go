package xdsrules

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"
	"unicode"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	// connectTimeout bounds the making of a connection, with its TLS handshake.
	connectTimeout = 20 * time.Second
	// pingEvery is how often a silent server is pinged. A server that uses grpc-go's defaults (Envoy Gateway) closes the
	// connection if pings come more often than every five minutes.
	pingEvery = 5*time.Minute + 10*time.Second
	// pingTimeout is how long the server may take to answer a ping.
	pingTimeout = 20 * time.Second
	// sendTimeout is how long the server may leave a request unread.
	sendTimeout = 10 * time.Second
)

// keepAliveProbes find a dead host sooner than pings: the other side's kernel answers them. They start after 30s of
// silence, and take pingTimeout.
var keepAliveProbes = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 4}

// connect returns a connection, which is made when it is first used. It reads the files of the TLS settings.
func (w *Watcher) connect() (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if w.cfg.TLS != nil {
		cfg, err := w.cfg.TLS()
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(cfg)
	}
	return grpc.NewClient(w.cfg.Server, append([]grpc.DialOption{
		grpc.WithTransportCredentials(probingCredentials{creds}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(w.cfg.MaxMessageBytes)),
		grpc.WithDisableServiceConfig(), // A service config would cost DNS queries.
		grpc.WithUserAgent("ratelimit"),
	}, w.dialOptions...)...)
}

// probingCredentials are credentials that set keepAliveProbes on each connection. A dialer could do that too, but gRPC
// would then ignore the proxy settings.
type probingCredentials struct {
	credentials.TransportCredentials
}

// ClientHandshake sets keepAliveProbes on a new connection, and then does the handshake.
func (p probingCredentials) ClientHandshake(ctx context.Context, authority string,
	conn net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAliveProbes) // If this fails, pings still find a dead host.
	}
	return p.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

// Clone returns a copy that sets keepAliveProbes, too.
func (p probingCredentials) Clone() credentials.TransportCredentials {
	return probingCredentials{p.TransportCredentials.Clone()}
}

// serverResponse is a message of the server: a *discovery.DiscoveryResponse, or a *discovery.DeltaDiscoveryResponse.
type serverResponse interface{ GetNonce() string }

// exchange sends and receives the messages of one stream, in one of the two variants of the protocol.
type exchange interface {
	receive() (serverResponse, error)
	// answer accepts r, or refuses it if refusal says why. If r is nil, it sends the first request of the stream.
	answer(r serverResponse, refusal *rpcstatus.Status) error
}

// adsStream is one stream of aggregated discovery.
type adsStream struct {
	exchange
	cancel context.CancelCauseFunc
	// responses holds the responses that the Watcher has not taken yet: of state of the world only the newest. It is
	// closed when the stream has ended.
	responses chan serverResponse
	endError  error // may be read once responses is closed
}

// maxWaitingDeltas is how many responses of delta xDS are received while others are loaded.
const maxWaitingDeltas = 16

// openStream opens a stream and asks for all resources. It starts a goroutine, which ends with the stream.
func (w *Watcher) openStream(ctx context.Context, cancel context.CancelCauseFunc,
	conn *grpc.ClientConn,
) (*adsStream, error) {
	if w.cfg.Headers != nil {
		headers, err := w.cfg.Headers()
		if err != nil {
			return nil, err
		}
		w.secretHider = secretsOf(headers)
		ctx = metadata.NewOutgoingContext(ctx, metadata.New(headers))
	}
	ads := discovery.NewAggregatedDiscoveryServiceClient(conn)
	s := &adsStream{cancel: cancel}
	if w.cfg.Delta {
		client, err := ads.DeltaAggregatedResources(ctx)
		if err != nil {
			return nil, err
		}
		s.exchange, s.responses = &deltaExchange{client, w.nodeIdentity, w.resources.resume()},
			make(chan serverResponse, maxWaitingDeltas)
		w.last.repeatCount = 0
	} else {
		client, err := ads.StreamAggregatedResources(ctx)
		if err != nil {
			return nil, err
		}
		s.exchange, s.responses = &sotwExchange{client: client, node: w.nodeIdentity}, make(chan serverResponse, 1)
	}
	go s.receiveResponses(!w.cfg.Delta)
	w.answerResponse(s, nil, "")
	return s, nil
}

// receiveResponses receives responses until the stream ends. With onlyNewest the next response replaces one that was
// not taken yet: a server may send faster than rules compile. State of the world allows that only the newest is
// acknowledged.
func (s *adsStream) receiveResponses(onlyNewest bool) {
	defer close(s.responses)
	for {
		r, err := s.receive()
		if err != nil {
			s.endError = err
			return
		}
		if onlyNewest {
			select {
			case <-s.responses:
			default:
			}
		}
		s.responses <- r // This does not block for long: the Watcher takes all responses, also when the stream has ended.
	}
}

// answerResponse accepts a response, or refuses it if refusal says why. Without a response it sends the first request
// of the stream. It ends the stream if the server does not read the answer for sendTimeout. It returns no error:
// receive gets the cause of any failure.
func (w *Watcher) answerResponse(s *adsStream, r serverResponse, refusal string) {
	var reason *rpcstatus.Status
	switch {
	case refusal != "":
		reason = &rpcstatus.Status{Message: refusal}
		w.stats.Nacks.Add(1)
	case r != nil:
		w.stats.Acks.Add(1)
	}
	timeout := time.AfterFunc(sendTimeout, func() { s.cancel(errNotReading) })
	defer timeout.Stop()
	_ = s.answer(r, reason)
}

// sotwExchange is the variant state of the world: each response has all resources.
type sotwExchange struct {
	client          discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node            *corev3.Node
	acceptedVersion string
}

func (x *sotwExchange) receive() (serverResponse, error) { return x.client.Recv() }

func (x *sotwExchange) answer(r serverResponse, refusal *rpcstatus.Status) error {
	request := &discovery.DiscoveryRequest{Node: x.node, TypeUrl: TypeURL, ErrorDetail: refusal}
	if r != nil {
		request.ResponseNonce = r.GetNonce()
	}
	if accepted, ok := r.(*discovery.DiscoveryResponse); ok && refusal == nil {
		x.acceptedVersion = accepted.GetVersionInfo()
	}
	request.VersionInfo = x.acceptedVersion
	return x.client.Send(request)
}

// deltaExchange is the variant delta: a response has the resources that changed, and the names of those that are gone.
type deltaExchange struct {
	client          discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node            *corev3.Node
	initialVersions map[string]string // sent with the first request, so that the server sends only what differs
}

func (x *deltaExchange) receive() (serverResponse, error) { return x.client.Recv() }

func (x *deltaExchange) answer(r serverResponse, refusal *rpcstatus.Status) error {
	request := &discovery.DeltaDiscoveryRequest{Node: x.node, TypeUrl: TypeURL, ErrorDetail: refusal}
	if r != nil {
		request.ResponseNonce = r.GetNonce()
	} else {
		request.InitialResourceVersions = x.initialVersions
	}
	return x.client.Send(request)
}

// Reasons of the Watcher to end a stream.
var (
	errReloadRequested = errors.New("asked to fetch the rules again")
	errNotReading      = fmt.Errorf("the server has not read what it was sent for %v", sendTimeout)
)

// troubleError returns an error that says on one line why there is no stream, from the error that ended it, and how to
// fix that.
func (w *Watcher) troubleError(err error) error {
	s, isStatus := status.FromError(err)
	var what string
	switch {
	case errors.Is(err, io.EOF):
		what = "the server ended the stream"
	case !isStatus:
		what = err.Error()
	case s.Code() == codes.Unavailable:
		what = s.Message()
	default:
		what = fmt.Sprintf("%s (%s)", s.Message(), s.Code())
	}
	what = strings.Join(strings.FieldsFunc(w.secretHider.Replace(what), unicode.IsControl), " ")
	text := fmt.Sprintf("xds server %s: %s", w.cfg.Server, cutText(what, maxText))
	// go-control-plane's servers return no code.
	if w.cfg.Delta && strings.Contains(strings.ToLower(text), "implemented") {
		return errors.New(text + "; " + deltaAdvice)
	}
	for line := range strings.Lines(adviceText) {
		if about, fix, _ := strings.Cut(line, " -> "); strings.Contains(text, about) {
			return errors.New(text + "; " + strings.TrimSpace(fix))
		}
	}
	return errors.New(text)
}

// secretsOf returns a replacer that hides the values of headers, whole and word by word. A server may quote the token
// that it refuses, and its text appears in the log and in the readiness endpoint.
func secretsOf(headers map[string]string) *strings.Replacer {
	var texts, pairs []string
	for _, value := range headers {
		texts = append(append(texts, value), strings.Fields(value)...)
	}
	// Longer texts come first, so that a value is hidden before its words.
	slices.SortFunc(texts, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, text := range texts {
		if len(text) >= 4 { // Shorter words are too common to be secrets.
			pairs = append(pairs, text, "…")
		}
	}
	return strings.NewReplacer(pairs...)
}

// deltaAdvice is the advice about a server that implements no delta xDS.
const deltaAdvice = "set CONFIG_TYPE=GRPC_XDS_SOTW: this server has no delta xDS"

// adviceText says how to fix errors. Each line has a part of an error's text, " -> ", and what to do about it. The
// first line that fits counts. Errors of the connection are recognized by their text, because gRPC returns nothing
// else.
//
//go:embed advice.txt
var adviceText string

// maxText bounds texts of the server in the log, and texts sent to it, in bytes.
const maxText = 4<<10 - len("...")

// cutText returns text, or its first maxBytes bytes and "..." if it is longer. The result is valid UTF-8, which
// protobuf demands.
func cutText(text string, maxBytes int) string {
	if len(text) > maxBytes {
		text = strings.ToValidUTF8(text[:maxBytes], "") + "..."
	}
	return strings.ToValidUTF8(text, "?")
}
