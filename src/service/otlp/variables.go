package otlp

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"ratelimit/src/files/certs"
)

// Signal is what an exporter sends, as the names of its variables spell it: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT.
type Signal string

// The signals that this program sends.
const (
	Traces  Signal = "TRACES"
	Metrics Signal = "METRICS"
)

// variablePrefixes returns the prefixes of the exporter's variables. The second one takes precedence.
func (s Signal) variablePrefixes() [2]string {
	return [2]string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_" + string(s) + "_"}
}

// OnMistake is called for a variable that is ignored. The error contains no value, which may be secret. Nil: nothing is
// called.
type OnMistake func(error)

// ignore removes a variable from the environment of the process. The SDK would ignore it, too, but write its value to
// stderr.
func (f OnMistake) ignore(name string, mistake error) {
	_ = os.Unsetenv(name) // It fails only for names that no variable can have.
	if f != nil {
		f(fmt.Errorf("%s=…: %w; it is ignored", name, mistake))
	}
}

// IgnoreMistakes ignores the variables of the exporter that cannot be read, as OpenTelemetry's specification says.
// protocol is "http" or "grpc".
func (s Signal) IgnoreMistakes(protocol string, on OnMistake) {
	for _, prefix := range s.variablePrefixes() {
		IgnoreMistake(prefix+"ENDPOINT", func(text string) error { return checkEndpoint(text, protocol) }, on)
		IgnoreMistake(prefix+"HEADERS", checkHeaders, on)
		IgnoreMistake(prefix+"TIMEOUT", WholeNumberFrom(0), on)
		IgnoreMistake(prefix+"CERTIFICATE", func(file string) error { _, err := certs.Authorities(file); return err }, on)
		certVariable, keyVariable := prefix+"CLIENT_CERTIFICATE", prefix+"CLIENT_KEY"
		switch cert, key := trimmedVariable(certVariable), trimmedVariable(keyVariable); {
		case cert == "" && key != "":
			on.ignore(keyVariable, fmt.Errorf("set it and %s, or neither", certVariable))
		case cert != "" && key == "":
			on.ignore(certVariable, fmt.Errorf("set it and %s, or neither", keyVariable))
		case cert != "":
			if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
				on.ignore(certVariable, err)
				on.ignore(keyVariable, fmt.Errorf("%s cannot be read", certVariable))
			}
		}
	}
}

// IgnoreMistake ignores a variable if check returns an error for its value.
func IgnoreMistake(name string, check func(text string) error, on OnMistake) {
	if text := trimmedVariable(name); text != "" {
		if err := check(text); err != nil {
			on.ignore(name, err)
		}
	}
}

// trimmedVariable returns the value of an environment variable without blanks around it.
func trimmedVariable(name string) string { return strings.TrimSpace(os.Getenv(name)) }

func checkEndpoint(text, protocol string) error {
	u, err := url.Parse(text)
	if err == nil && (u.Host != "" || protocol == "grpc" && u.Scheme != "http" && u.Scheme != "https") {
		return nil // gRPC also accepts targets such as dns:///collector:4317.
	}
	port := map[string]int{"http": 4318, "grpc": 4317}[protocol]
	return fmt.Errorf("write a URL such as http://collector:%d, or https:// for TLS", port)
}

func checkHeaders(text string) error {
	for i, header := range strings.Split(text, ",") {
		name, value, ok := strings.Cut(header, "=")
		if _, err := url.PathUnescape(value); !ok || err != nil || !httpguts.ValidHeaderFieldName(strings.TrimSpace(name)) {
			return fmt.Errorf("header %d: write name=value, separated by commas, with %%2C for a comma and %%25 for a percent "+
				"sign in values", i+1)
		}
	}
	return nil
}

// WholeNumberFrom returns a check for whole numbers that are not below least.
func WholeNumberFrom(least int) func(text string) error {
	return func(text string) error {
		if n, err := strconv.Atoi(text); err != nil || n < least {
			return fmt.Errorf("write a whole number, %d or more", least)
		}
		return nil
	}
}
