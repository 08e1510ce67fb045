package tracing

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// prefixes of the variables of exporters. The second takes precedence.
var prefixes = []string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"}

// token matches the name of a header.
var token = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// checkVariables returns mistakes in variables that the exporters and the SDK would
// ignore, or write to stderr with the value. Values may be secret, so errors show none.
func checkVariables(protocol string) error {
	var problems []error
	for _, prefix := range prefixes {
		v := variables{prefix, &problems}
		v.endpoint(protocol)
		v.headers()
		v.number("TIMEOUT", 0)
		v.certificates()
	}
	v := variables{"OTEL_BSP_", &problems}
	v.number("MAX_QUEUE_SIZE", 1)
	v.number("MAX_EXPORT_BATCH_SIZE", 1)
	v.number("SCHEDULE_DELAY", 1)
	return errors.Join(problems...)
}

// variables are those that begin with prefix.
type variables struct {
	prefix   string
	problems *[]error
}

func (v variables) read(name string) string { return strings.TrimSpace(os.Getenv(v.prefix + name)) }

func (v variables) problem(name, format string, args ...any) {
	*v.problems = append(*v.problems, fmt.Errorf("%s%s=…: %s", v.prefix, name, fmt.Sprintf(format, args...)))
}

func (v variables) endpoint(protocol string) {
	text := v.read("ENDPOINT")
	if text == "" {
		return
	}
	u, err := url.Parse(text)
	if err == nil && (u.Host != "" || protocol == "grpc" && u.Scheme != "http" && u.Scheme != "https") {
		return // gRPC has other targets too, such as dns:///collector:4317
	}
	port := map[string]int{"http": 4318, "grpc": 4317}[protocol]
	v.problem("ENDPOINT", "write a URL such as http://collector:%d, or https:// for TLS", port)
}

func (v variables) headers() {
	text := v.read("HEADERS")
	if text == "" {
		return
	}
	for i, header := range strings.Split(text, ",") {
		name, value, ok := strings.Cut(header, "=")
		if _, err := url.PathUnescape(value); !ok || err != nil || !token.MatchString(strings.TrimSpace(name)) {
			v.problem("HEADERS", "header %d: write name=value, separated by commas, with %%2C for a comma and %%25 for a percent sign in values", i+1)
		}
	}
}

func (v variables) number(name string, least int) {
	text := v.read(name)
	if n, err := strconv.Atoi(text); text != "" && (err != nil || n < least) {
		v.problem(name, "write a whole number, %d or more", least)
	}
}

func (v variables) certificates() {
	if file := v.read("CERTIFICATE"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			v.problem("CERTIFICATE", "%v", err)
		} else if !x509.NewCertPool().AppendCertsFromPEM(pem) {
			v.problem("CERTIFICATE", "%s: no certificate in PEM form in it", file)
		}
	}
	cert, key := v.read("CLIENT_CERTIFICATE"), v.read("CLIENT_KEY")
	switch {
	case cert == "" && key == "":
	case cert == "" || key == "":
		v.problem("CLIENT_CERTIFICATE", "set it and %sCLIENT_KEY, or neither", v.prefix)
	default:
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			v.problem("CLIENT_CERTIFICATE", "%v", err)
		}
	}
}
