package settings

import (
	"regexp"
	"strings"
	"time"
)

// XDS is the management server that rules come from with CONFIG_TYPE GRPC_XDS_SOTW.
type XDS struct {
	Server       string            `env:"CONFIG_GRPC_XDS_SERVER_URL"`
	NodeID       string            `env:"CONFIG_GRPC_XDS_NODE_ID"`
	MetadataText string            `env:"CONFIG_GRPC_XDS_NODE_METADATA"`
	NodeMetadata map[string]string // of MetadataText
	HeaderText   string            `env:"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"`
	Headers      map[string]string // of HeaderText
	TLS          bool              `env:"CONFIG_GRPC_XDS_SERVER_USE_TLS"`
	CACert       string            `env:"CONFIG_GRPC_XDS_SERVER_TLS_CACERT"`
	SAN          string            `env:"CONFIG_GRPC_XDS_SERVER_TLS_SAN"`
	ClientCert   string            `env:"CONFIG_GRPC_XDS_CLIENT_TLS_CERT"` // empty without ClientKey
	ClientKey    string            `env:"CONFIG_GRPC_XDS_CLIENT_TLS_KEY"`  // empty without ClientCert
	MaxMessage   int64             `env:"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"`
	// Pauses between attempts: RetryInterval, then BackoffInitial, each further one
	// BackoffGrowth times as long, up to BackoffMax. BackoffJitter is the random share.
	RetryInterval  time.Duration `env:"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL"`
	BackoffInitial time.Duration `env:"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"`
	BackoffMax     time.Duration `env:"XDS_CLIENT_BACKOFF_MAX_INTERVAL"`
	RandomFactor   float32       `env:"XDS_CLIENT_BACKOFF_RANDOM_FACTOR"`
	Random         bool          `env:"XDS_CLIENT_BACKOFF_JITTER"`
	BackoffGrowth  float64       // of RandomFactor
	BackoffJitter  float64       // of RandomFactor and Random
}

// derive sets what no single variable says.
func (x *XDS) derive() {
	x.BackoffGrowth, x.BackoffJitter = 2, float64(x.RandomFactor)
	if x.RandomFactor > 1 {
		x.BackoffGrowth, x.BackoffJitter = x.BackoffJitter, 0.5
	}
	if !x.Random {
		x.BackoffJitter = 0
	}
	if x.ClientCert == "" || x.ClientKey == "" { // as upstream
		x.ClientCert, x.ClientKey = "", ""
	}
}

// headerKey is the name of a header that gRPC sends.
var headerKey = regexp.MustCompile(`^[-_.0-9a-z]+$`)

// validate checks what the table cannot, and takes maps apart.
func (x *XDS) validate(r *reader) {
	if x.Server == "" || strings.HasPrefix(x.Server, "http://") || strings.HasPrefix(x.Server, "https://") {
		r.problem("CONFIG_GRPC_XDS_SERVER_URL", x.Server, "write host:port; TLS is a matter of CONFIG_GRPC_XDS_SERVER_USE_TLS")
	}
	if x.MetadataText != "" {
		x.readMetadata(r)
	}
	if x.HeaderText != "" {
		x.readHeaders(r)
	}
}

// readMetadata reads "key=value,key=value". It warns of an item without an equals sign, and
// leaves it out as envoyproxy/ratelimit does.
func (x *XDS) readMetadata(r *reader) {
	x.NodeMetadata = make(map[string]string)
	for item := range strings.SplitSeq(x.MetadataText, ",") {
		if key, value, ok := strings.Cut(item, "="); ok {
			x.NodeMetadata[key] = value
		} else {
			r.warn("CONFIG_GRPC_XDS_NODE_METADATA: %q is left out: it is not key=value", item)
		}
	}
}

// readHeaders reads "name:value,name:value". Values may be secrets, so they are never shown.
func (x *XDS) readHeaders(r *reader) {
	refuse := func(fix string) { r.problem("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "…", fix) }
	x.Headers = make(map[string]string)
	for item := range strings.SplitSeq(x.HeaderText, ",") {
		name, value, ok := strings.Cut(item, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		switch {
		case !ok:
			refuse("write name:value, separated by commas")
			return
		case !headerKey.MatchString(name) || strings.HasPrefix(name, "grpc-"):
			refuse("a name is none that gRPC sends: write letters, digits, - _ and . and do not begin with grpc-")
			return
		case strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }) && !strings.HasSuffix(name, "-bin"):
			refuse("the value of " + name + " is not printable ASCII")
			return
		}
		x.Headers[name] = value
	}
}
