package xdsrules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reasons of ours to end a stream.
var (
	errReload     = errors.New("asked to fetch the rules again")
	errNotReading = fmt.Errorf("the server has not read what it was sent for %v", sendTimeout)
)

// Trouble is why there is no stream to the server.
type Trouble struct {
	Server string
	What   string
	Mend   string // may be empty
}

// Error is one line.
func (t *Trouble) Error() string {
	text := fmt.Sprintf("xds server %s: %s", t.Server, t.What)
	if t.Mend != "" {
		text += "; " + t.Mend
	}
	return text
}

// trouble puts an error of gRPC into words.
func (w *Watcher) trouble(ctx context.Context, err error) *Trouble {
	t := &Trouble{Server: w.cfg.Server}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	s, isStatus := status.FromError(err)
	switch {
	case errors.Is(err, io.EOF):
		t.What = "the server ended the stream"
	case !isStatus:
		t.What = err.Error()
	case s.Code() == codes.Unavailable:
		t.What = s.Message()
	default:
		t.What = fmt.Sprintf("%s (%s)", s.Message(), s.Code())
	}
	t.What = oneLine(t.What)
	for _, a := range advice {
		if strings.Contains(t.What, a.about) {
			t.Mend = a.mend
			break
		}
	}
	return t
}

// advice is what helps, by what is found in the text of an error: gRPC hands on
// nothing else of what went wrong below it.
var advice = []struct{ about, mend string }{
	{"signed by unknown authority", "set CONFIG_GRPC_XDS_SERVER_TLS_CACERT to a PEM file of the authority that issued the server's certificate"},
	{"certificate is valid for", "set CONFIG_GRPC_XDS_SERVER_TLS_SAN to a name that is in the server's certificate, or have it issued for this one"},
	{"because it doesn't contain any IP SANs", "set CONFIG_GRPC_XDS_SERVER_TLS_SAN to a name that is in the server's certificate, or have it issued for this one"},
	{"certificate is not valid for any names", "have the server's certificate issued for a name"},
	{"failed to verify certificate: x509: certificate has expired", "renew the server's certificate, or mend this host's clock"},
	{"tls: certificate required", "the server wants a certificate: set CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY"},
	{"tls: expired certificate", "renew the certificate of CONFIG_GRPC_XDS_CLIENT_TLS_CERT"},
	{"tls: unknown certificate authority", "the server does not trust the certificate of CONFIG_GRPC_XDS_CLIENT_TLS_CERT: have it issued by an authority that it knows"},
	{"tls: bad certificate", "the server does not accept the certificate of CONFIG_GRPC_XDS_CLIENT_TLS_CERT: it may have expired, or be of an authority that the server does not know"},
	{"first record does not look like a TLS handshake", "the server speaks plain text: set CONFIG_GRPC_XDS_SERVER_USE_TLS=false"},
	{"missing selected ALPN property", "the server's TLS does not offer HTTP/2: let it offer h2, or set GRPC_ENFORCE_ALPN_ENABLED=false"},
	{"error reading server preface", "is it a gRPC server, and does it want TLS (CONFIG_GRPC_XDS_SERVER_USE_TLS)?"},
	{"received message larger than max", "raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"},
	{"(Unimplemented)", "name a management server with CONFIG_GRPC_XDS_SERVER_URL: this one has no aggregated discovery"},
	{"(Unauthenticated)", "the server wants to know who asks: CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS, or CONFIG_GRPC_XDS_CLIENT_TLS_CERT"},
	{"(PermissionDenied)", "the server does not let this node in: CONFIG_GRPC_XDS_NODE_ID, CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS, or CONFIG_GRPC_XDS_CLIENT_TLS_CERT"},
	{"produced zero addresses", "mend CONFIG_GRPC_XDS_SERVER_URL, or the DNS"},
	{"no such host", "mend CONFIG_GRPC_XDS_SERVER_URL, or the DNS"},
	{"connection refused", "is CONFIG_GRPC_XDS_SERVER_URL right, and does the server run?"},
}

// maxText bounds what others can have us log, or send.
const maxText = 4 << 10

// oneLine is a text of others as one line of bounded length.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	return cut(text)
}

// cut bounds a text, which is UTF-8 afterwards, as protobuf wants it.
func cut(text string) string {
	if len(text) > maxText {
		text = text[:maxText-len("...")] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}
