package xdsrules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The Watcher's reasons to end a stream.
var (
	errReload     = errors.New("asked to fetch the rules again")
	errNotReading = fmt.Errorf("the server has not read what it was sent for %v", sendTimeout)
)

// Trouble is the reason why there is no stream to the server.
type Trouble struct {
	Server string
	What   string
	Fix    string // may be empty
}

// Error is one line.
func (t *Trouble) Error() string {
	text := fmt.Sprintf("xds server %s: %s", t.Server, t.What)
	if t.Fix != "" {
		text += "; " + t.Fix
	}
	return text
}

// trouble describes an error of gRPC.
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
	t.What = oneLine(w.secrets.Replace(t.What))
	for _, a := range advice {
		if strings.Contains(t.What, a.about) {
			t.Fix = a.fix
			break
		}
	}
	return t
}

// secretsOf returns a replacer that hides the values of headers, whole and word by word: a
// server may quote the token that it refuses, and its text appears in the log and in the
// readiness endpoint. Longer values are replaced first.
func secretsOf(headers map[string]string) *strings.Replacer {
	var texts, pairs []string
	for _, value := range headers {
		texts = append(append(texts, value), strings.Fields(value)...)
	}
	slices.SortFunc(texts, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, text := range texts {
		if len(text) >= 4 { // shorter words are too common
			pairs = append(pairs, text, "…")
		}
	}
	return strings.NewReplacer(pairs...)
}

// advice is how to fix an error whose text contains about. gRPC returns errors of the
// connection as text only.
var advice = []struct{ about, fix string }{
	{"signed by unknown authority", "set CONFIG_GRPC_XDS_SERVER_TLS_CACERT to a PEM file of the authority that issued the server's certificate"},
	{"certificate is valid for", "set CONFIG_GRPC_XDS_SERVER_TLS_SAN to a name that is in the server's certificate, or have it issued for this one"},
	{"because it doesn't contain any IP SANs", "set CONFIG_GRPC_XDS_SERVER_TLS_SAN to a name that is in the server's certificate, or have it issued for this one"},
	{"certificate is not valid for any names", "have the server's certificate issued for a name"},
	{"failed to verify certificate: x509: certificate has expired", "renew the server's certificate, or set this host's clock"},
	{"tls: certificate required", "the server wants a certificate: set CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY"},
	{"tls: expired certificate", "renew the certificate of CONFIG_GRPC_XDS_CLIENT_TLS_CERT"},
	{"tls: unknown certificate authority", "the server does not trust the certificate of CONFIG_GRPC_XDS_CLIENT_TLS_CERT: have it issued by an authority that the server trusts"},
	{"tls: bad certificate", "the server does not accept the certificate of CONFIG_GRPC_XDS_CLIENT_TLS_CERT: it may have expired, or its authority is not one that the server trusts"},
	{"first record does not look like a TLS handshake", "the server speaks plain text: set CONFIG_GRPC_XDS_SERVER_USE_TLS=false"},
	{"missing selected ALPN property", "the server's TLS does not offer HTTP/2: let it offer h2, or set GRPC_ENFORCE_ALPN_ENABLED=false"},
	{"error reading server preface", "is it a gRPC server, and does it want TLS (CONFIG_GRPC_XDS_SERVER_USE_TLS)?"},
	{"received message larger than max", "raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"},
	{"(Unimplemented)", "name a management server with CONFIG_GRPC_XDS_SERVER_URL: this one has no aggregated discovery"},
	{"(Unauthenticated)", "the server demands authentication: set CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS, or CONFIG_GRPC_XDS_CLIENT_TLS_CERT"},
	{"(PermissionDenied)", "the server denies access to this node: check CONFIG_GRPC_XDS_NODE_ID, CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS, or CONFIG_GRPC_XDS_CLIENT_TLS_CERT"},
	{"produced zero addresses", "fix CONFIG_GRPC_XDS_SERVER_URL, or the DNS"},
	{"no such host", "fix CONFIG_GRPC_XDS_SERVER_URL, or the DNS"},
	{"connection refused", "is CONFIG_GRPC_XDS_SERVER_URL right, and does the server run?"},
}

// maxText bounds texts of the server in the log, and texts sent to it, in bytes.
const maxText = 4 << 10

// oneLine returns text as one line of bounded length.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	return cut(text)
}

// cut bounds a text, and makes it valid UTF-8, which protobuf demands.
func cut(text string) string {
	if len(text) > maxText {
		text = text[:maxText-len("...")] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}
