package settings

import (
	"errors"
	"regexp"
	"strings"
	"time"
)

// XDS describes the management servers of the rules.
type XDS struct {
	First  XDSServer `env:"CONFIG_GRPC_XDS_"`
	Second XDSServer `env:"CONFIG_GRPC_XDS2_"`
	// Servers are First and Second, as far as CONFIG_TYPE names them.
	Servers []*XDSServer

	MaxMessageBytes int64 `env:"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"`
	// RetryInterval is the pause after the first failure, BackoffInitial after the second. Each further pause is
	// BackoffGrowth times as long, up to BackoffMax. BackoffJitter, from 0 to 1, is the share of a pause that is random.
	RetryInterval  time.Duration `env:"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL"`
	BackoffInitial time.Duration `env:"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"`
	BackoffMax     time.Duration `env:"XDS_CLIENT_BACKOFF_MAX_INTERVAL"`
	RandomFactor   float32       `env:"XDS_CLIENT_BACKOFF_RANDOM_FACTOR"`
	JitterEnabled  bool          `env:"XDS_CLIENT_BACKOFF_JITTER"`
	BackoffGrowth  float64       // RandomFactor if that is above 1, or else 2.
	BackoffJitter  float64       // 0 if JitterEnabled is false.
}

// XDSServer describes a management server.
type XDSServer struct {
	Name         string            // "xds" or "xds2", in figures and in the state.
	Prefix       string            // the start of the names of its variables.
	Delta        bool              // it sends delta xDS.
	Server       string            `env:"SERVER_URL"`
	NodeID       string            `env:"NODE_ID"`
	MetadataText string            `env:"NODE_METADATA"`
	NodeMetadata map[string]string // MetadataText as a map.
	HeaderText   string            `env:"CLIENT_ADDITIONAL_HEADERS"`
	Headers      map[string]string // HeaderText as a map.
	HeaderFile   string            `env:"CLIENT_ADDITIONAL_HEADERS_FILE"` // the path of a file with more of them.
	TLS          bool              `env:"SERVER_USE_TLS"`
	CACert       string            `env:"SERVER_TLS_CACERT"`
	ServerName   string            `env:"SERVER_TLS_SAN"`
	ClientCert   string            `env:"CLIENT_TLS_CERT"` // empty if there is no ClientKey.
	ClientKey    string            `env:"CLIENT_TLS_KEY"`  // empty if there is no ClientCert.
}

// derive sets Servers, BackoffGrowth and BackoffJitter. sources is the list in CONFIG_TYPE.
func (x *XDS) derive(sources []string) {
	x.First.Name, x.First.Prefix = "xds", "CONFIG_GRPC_XDS_"
	x.Second.Name, x.Second.Prefix = "xds2", "CONFIG_GRPC_XDS2_"
	for _, source := range sources {
		if all := []*XDSServer{&x.First, &x.Second}; source != ConfigFile && len(x.Servers) < len(all) {
			server := all[len(x.Servers)]
			server.Delta = source == ConfigXDSDelta
			x.Servers = append(x.Servers, server)
		}
	}
	x.BackoffGrowth, x.BackoffJitter = 2, float64(x.RandomFactor)
	if x.RandomFactor > 1 {
		x.BackoffGrowth, x.BackoffJitter = x.BackoffJitter, 0.5
	}
	if !x.JitterEnabled {
		x.BackoffJitter = 0
	}
	for _, server := range []*XDSServer{&x.First, &x.Second} {
		if server.ClientCert == "" || server.ClientKey == "" { // envoyproxy/ratelimit ignores one without the other, too
			server.ClientCert, server.ClientKey = "", ""
		}
	}
}

// headerKey matches the name of a header that gRPC can send.
var headerKey = regexp.MustCompile(`^[-_.0-9a-z]+$`)

// validate checks the server's address and sets NodeMetadata and Headers.
func (x *XDSServer) validate(r *reader) {
	if x.Server == "" || strings.HasPrefix(x.Server, "http://") || strings.HasPrefix(x.Server, "https://") {
		r.problem(x.Prefix+"SERVER_URL", x.Server, "write host:port; TLS is a matter of "+x.Prefix+"SERVER_USE_TLS")
	}
	if x.MetadataText != "" {
		x.readMetadata(r)
	}
	if x.HeaderText != "" {
		var err error
		if x.Headers, err = ParseHeaders(x.HeaderText, ","); err != nil {
			r.problem(x.Prefix+"CLIENT_ADDITIONAL_HEADERS", "…", err.Error())
		}
	}
}

// readMetadata sets NodeMetadata from "key=value,key=value". It skips an item without an equals sign, as
// envoyproxy/ratelimit does, and warns of it.
func (x *XDSServer) readMetadata(r *reader) {
	x.NodeMetadata = make(map[string]string)
	for item := range strings.SplitSeq(x.MetadataText, ",") {
		if key, value, ok := strings.Cut(item, "="); ok {
			x.NodeMetadata[key] = value
		} else {
			r.warn("%sNODE_METADATA: %q is left out: it is not key=value", x.Prefix, item)
		}
	}
}

// ParseHeaders returns the headers in "name:value" items between separators. Errors say what to write, and show no
// values, because these may be secret.
func ParseHeaders(text, separator string) (map[string]string, error) {
	headers := make(map[string]string)
	for item := range strings.SplitSeq(text, separator) {
		name, value, ok := strings.Cut(item, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		switch {
		case !ok && separator == ",":
			return nil, errors.New("write name:value, separated by commas")
		case !ok:
			return nil, errors.New("write name:value in each line")
		case !headerKey.MatchString(name):
			return nil, errors.New("a name is none that gRPC sends: write letters, digits, dots, - and _")
		case strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }) && !strings.HasSuffix(name, "-bin"):
			return nil, errors.New("the value of " + name + " is not printable ASCII")
		}
		headers[name] = value
	}
	return headers, nil
}
