package settings

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
)

// XDS is the management server that rules come from with CONFIG_TYPE
// GRPC_XDS_SOTW.
type XDS struct {
	Server       string
	NodeID       string
	NodeMetadata map[string]string
	Headers      map[string]string
	TLS          bool
	CACert, SAN  string // files; both of a client's certificate, or none
	ClientCert   string
	ClientKey    string
	MaxMessage   int64 // bytes; 0: gRPC's default
	// Pauses between attempts: RetryInterval, then BackoffInitial, each further
	// one BackoffGrowth times as long, up to BackoffMax. BackoffJitter is the
	// share that is left to chance.
	RetryInterval   time.Duration
	BackoffInitial  time.Duration
	BackoffMax      time.Duration
	BackoffGrowth   float64
	BackoffJitter   float64
	backoffFactor   float32
	backoffVary     bool
	headers, labels string // as they were set
}

// declare names the variables of the management server.
func (x *XDS) declare(r *reader) {
	r.section("Rules over xDS")
	r.text(&x.Server, "CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", "the management server with `CONFIG_TYPE=GRPC_XDS_SOTW`, `host:port`")
	r.text(&x.NodeID, "CONFIG_GRPC_XDS_NODE_ID", "default", "the name by which it knows this node")
	r.text(&x.labels, "CONFIG_GRPC_XDS_NODE_METADATA", "", "the node's metadata, `key=value,key=value`")
	r.secret(&x.headers, "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "map", "headers to send, `name:value,name:value`")
	r.flag(&x.TLS, "CONFIG_GRPC_XDS_SERVER_USE_TLS", false, "use TLS")
	r.text(&x.CACert, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", "PEM file of authorities to trust in addition to the system's; read for each connection, like all files of this section")
	r.text(&x.SAN, "CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", "name in the server's certificate, if it is not the host")
	r.text(&x.ClientCert, "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", "PEM file of the client's certificate chain")
	r.text(&x.ClientKey, "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", "PEM file of its key")
	r.size(&x.MaxMessage, "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", 0, "largest response, with all rules; 0: 4194304").atMost(math.MaxInt32)
	r.duration(&x.RetryInterval, "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", 3*time.Second, "pause after a connection was lost, or could not be made at the start").pause(minPause)
	r.duration(&x.BackoffInitial, "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", 10*time.Second, "pause after the next failure; it doubles").pause(minPause)
	r.duration(&x.BackoffMax, "XDS_CLIENT_BACKOFF_MAX_INTERVAL", time.Minute, "longest pause. A connection that lasts as long as the initial interval resets the pauses").pause(minPause)
	r.decimal(&x.backoffFactor, "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", 0.5, func(f float64) bool { return f >= 0 && !math.IsInf(f, 0) }, "write a number such as 0.5",
		"up to 1: the random share of each pause. Above 1: the factor by which pauses grow, as in envoyproxy/ratelimit, with a random share of 0.5")
	r.flag(&x.backoffVary, "XDS_CLIENT_BACKOFF_JITTER", true, "make a share of each pause random")
}

// headerKey is the name of a header that gRPC sends.
var headerKey = regexp.MustCompile(`^[-_.0-9a-z]+$`)

// validate checks what one variable alone cannot, and takes maps apart.
func (x *XDS) validate(r *reader, used bool) {
	if !used {
		r.warnUnused("CONFIG_TYPE is not "+ConfigXDS, "set CONFIG_TYPE="+ConfigXDS, "CONFIG_GRPC_XDS_SERVER_URL")
		return
	}
	if x.Server == "" || strings.HasPrefix(x.Server, "http://") || strings.HasPrefix(x.Server, "https://") {
		r.problem("CONFIG_GRPC_XDS_SERVER_URL", x.Server, "write host:port; TLS is a matter of CONFIG_GRPC_XDS_SERVER_USE_TLS")
	}
	x.readMetadata(r)
	x.readHeaders(r)
	x.validateTLS(r)
	x.BackoffGrowth, x.BackoffJitter = 2, float64(x.backoffFactor)
	if f := float64(x.backoffFactor); f > 1 {
		x.BackoffGrowth, x.BackoffJitter = f, 0.5
	}
	if !x.backoffVary {
		x.BackoffJitter = 0
	}
}

// readMetadata reads "key=value,key=value". What has no equals sign is left
// out, as envoyproxy/ratelimit does, but not silently.
func (x *XDS) readMetadata(r *reader) {
	x.NodeMetadata = nil
	if x.labels == "" {
		return
	}
	x.NodeMetadata = make(map[string]string)
	for item := range strings.SplitSeq(x.labels, ",") {
		key, value, ok := strings.Cut(item, "=")
		if !ok {
			r.warnings = append(r.warnings, fmt.Sprintf("CONFIG_GRPC_XDS_NODE_METADATA: %q is left out: it is not key=value", item))
			continue
		}
		x.NodeMetadata[key] = value
	}
}

// readHeaders reads "name:value,name:value". Values may be secrets, so they are
// never shown.
func (x *XDS) readHeaders(r *reader) {
	x.Headers = nil
	if x.headers == "" {
		return
	}
	x.Headers = make(map[string]string)
	for item := range strings.SplitSeq(x.headers, ",") {
		name, value, ok := strings.Cut(item, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		switch {
		case !ok:
			r.problem("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "…", "write name:value, separated by commas")
			return
		case !headerKey.MatchString(name) || strings.HasPrefix(name, "grpc-"):
			r.problem("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "…", "a name is none that gRPC sends: write letters, digits, - _ and . and do not begin with grpc-")
			return
		case strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }) && !strings.HasSuffix(name, "-bin"):
			r.problem("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "…", "the value of "+name+" is not printable ASCII")
			return
		}
		x.Headers[name] = value
	}
}

func (x *XDS) validateTLS(r *reader) {
	const cert, key = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"
	switch {
	case x.ClientCert != "" && x.ClientKey == "":
		r.warnUnused(key+" is not set", "set "+key, cert)
	case x.ClientCert == "" && x.ClientKey != "":
		r.warnUnused(cert+" is not set", "set "+cert, key)
	}
	if x.ClientCert == "" || x.ClientKey == "" { // as upstream
		x.ClientCert, x.ClientKey = "", ""
	}
	if !x.TLS && !r.unreadable("CONFIG_GRPC_XDS_SERVER_USE_TLS") {
		r.warnUnused("CONFIG_GRPC_XDS_SERVER_USE_TLS is not true", "set CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
			"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "CONFIG_GRPC_XDS_SERVER_TLS_SAN", cert)
	}
}
