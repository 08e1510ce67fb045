package tracing

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

// variablePrefixes has the prefixes of the exporters' variables. The second one takes precedence.
var variablePrefixes = []string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"}

// checkVariables returns the mistakes in variables of the exporters and the SDK, which would
// ignore them or write their values to stderr. Errors contain no values, which may be secret.
func checkVariables(protocol string) error {
	var problems []error
	check := func(prefix, name string, refuse func(text string) error) {
		if text := trimmedVariable(prefix + name); text != "" {
			if err := refuse(text); err != nil {
				problems = append(problems, fmt.Errorf("%s%s=…: %w", prefix, name, err))
			}
		}
	}
	for _, prefix := range variablePrefixes {
		check(prefix, "ENDPOINT", func(text string) error { return checkEndpoint(text, protocol) })
		check(prefix, "HEADERS", checkHeaders)
		check(prefix, "TIMEOUT", wholeNumberFrom(0))
		check(prefix, "CERTIFICATE", func(file string) error { _, err := certs.Authorities(file); return err })
		cert, key := trimmedVariable(prefix+"CLIENT_CERTIFICATE"), trimmedVariable(prefix+"CLIENT_KEY")
		if (cert == "") != (key == "") {
			problems = append(problems, fmt.Errorf("%sCLIENT_CERTIFICATE=…: set it and %sCLIENT_KEY, or neither", prefix, prefix))
		} else if _, err := tls.LoadX509KeyPair(cert, key); cert != "" && err != nil {
			problems = append(problems, fmt.Errorf("%sCLIENT_CERTIFICATE=…: %w", prefix, err))
		}
	}
	for _, name := range []string{"MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE", "SCHEDULE_DELAY"} {
		check("OTEL_BSP_", name, wholeNumberFrom(1))
	}
	return errors.Join(problems...)
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

// wholeNumberFrom returns a check for whole numbers that are not below least.
func wholeNumberFrom(least int) func(text string) error {
	return func(text string) error {
		if n, err := strconv.Atoi(text); err != nil || n < least {
			return fmt.Errorf("write a whole number, %d or more", least)
		}
		return nil
	}
}
