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

// variablePrefixes returns the starts of the names of an exporter's variables. The second one takes precedence. signal
// is TRACES or METRICS.
func variablePrefixes(signal string) [2]string {
	return [2]string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_" + signal + "_"}
}

// ignore removes a variable from the environment of the process. The SDK would ignore it, too, but write its value to
// stderr.
func (c *Config) ignore(name string, mistake error) {
	_ = os.Unsetenv(name) // It fails only for names that no variable can have.
	if c.OnMistake != nil {
		c.OnMistake(fmt.Errorf("%s=…: %w; it is ignored", name, mistake))
	}
}

// ignoreMistakes ignores the variables of an exporter that cannot be read, as OpenTelemetry's specification says.
func (c *Config) ignoreMistakes(signal string) {
	for _, prefix := range variablePrefixes(signal) {
		c.ignoreMistake(prefix+"ENDPOINT", c.checkEndpoint)
		c.ignoreMistake(prefix+"HEADERS", checkHeaders)
		c.ignoreMistake(prefix+"TIMEOUT", wholeNumberFrom(0))
		c.ignoreMistake(prefix+"CERTIFICATE", func(file string) error { _, err := certs.Authorities(file); return err })
		certVariable, keyVariable := prefix+"CLIENT_CERTIFICATE", prefix+"CLIENT_KEY"
		switch cert, key := trimmedVariable(certVariable), trimmedVariable(keyVariable); {
		case cert == "" && key != "":
			c.ignore(keyVariable, fmt.Errorf("set it and %s, or neither", certVariable))
		case cert != "" && key == "":
			c.ignore(certVariable, fmt.Errorf("set it and %s, or neither", keyVariable))
		case cert != "":
			if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
				c.ignore(certVariable, err)
				c.ignore(keyVariable, fmt.Errorf("%s cannot be read", certVariable))
			}
		}
	}
}

// ignoreMistake ignores a variable if check returns an error for its value.
func (c *Config) ignoreMistake(name string, check func(text string) error) {
	if text := trimmedVariable(name); text != "" {
		if err := check(text); err != nil {
			c.ignore(name, err)
		}
	}
}

// trimmedVariable returns the value of an environment variable without blanks around it.
func trimmedVariable(name string) string { return strings.TrimSpace(os.Getenv(name)) }

func (c *Config) checkEndpoint(text string) error {
	isGRPC, port := c.Protocol == "grpc", 4318
	if isGRPC {
		port = 4317
	}
	u, err := url.Parse(text)
	if err == nil && (u.Host != "" || isGRPC && u.Scheme != "http" && u.Scheme != "https") {
		return nil // gRPC also accepts targets such as dns:///collector:4317.
	}
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

// wholeNumberFrom returns a check for whole numbers that are not below least.
func wholeNumberFrom(least int) func(text string) error {
	return func(text string) error {
		if n, err := strconv.Atoi(text); err != nil || n < least {
			return fmt.Errorf("write a whole number, %d or more", least)
		}
		return nil
	}
}
