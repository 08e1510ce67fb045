package otlp

import (
	"crypto/tls"
	"errors"
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

// CheckVariables returns the mistakes in variables of the exporter, which would ignore them or write their values to stderr. protocol is
// "http" or "grpc". Errors contain no values, which may be secret.
func (s Signal) CheckVariables(protocol string) error {
	var problems []error
	check := func(prefix, name string, refuse func(text string) error) {
		problems = append(problems, CheckVariable(prefix+name, refuse))
	}
	for _, prefix := range s.variablePrefixes() {
		check(prefix, "ENDPOINT", func(text string) error { return checkEndpoint(text, protocol) })
		check(prefix, "HEADERS", checkHeaders)
		check(prefix, "TIMEOUT", WholeNumberFrom(0))
		check(prefix, "CERTIFICATE", func(file string) error { _, err := certs.Authorities(file); return err })
		cert, key := trimmedVariable(prefix+"CLIENT_CERTIFICATE"), trimmedVariable(prefix+"CLIENT_KEY")
		if (cert == "") != (key == "") {
			problems = append(problems, fmt.Errorf("%sCLIENT_CERTIFICATE=…: set it and %sCLIENT_KEY, or neither", prefix, prefix))
		} else if _, err := tls.LoadX509KeyPair(cert, key); cert != "" && err != nil {
			problems = append(problems, fmt.Errorf("%sCLIENT_CERTIFICATE=…: %w", prefix, err))
		}
	}
	return errors.Join(problems...)
}

// CheckVariable returns the error of refuse for the value of an environment variable that is set.
func CheckVariable(name string, refuse func(text string) error) error {
	if text := trimmedVariable(name); text != "" {
		if err := refuse(text); err != nil {
			return fmt.Errorf("%s=…: %w", name, err)
		}
	}
	return nil
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
			return fmt.Errorf("header %d: write name=value, separated by commas, with %%2C for a comma and %%25 for a percent sign in values", i+1)
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
