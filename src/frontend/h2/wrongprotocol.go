package h2

import (
	"bytes"
	"crypto/tls"
	"errors"
)

// WrongProtocolError says that a client does not speak what the port does. The settings of one of them must change.
type WrongProtocolError struct{ reason string }

func (e *WrongProtocolError) Error() string { return e.reason }

var (
	errHTTP1 = &WrongProtocolError{"the client speaks HTTP/1.1, and gRPC needs HTTP/2: give Envoy's cluster " +
		"`typed_extension_protocol_options` with `http2_protocol_options`, or ask /json on the HTTP port"}
	errTLS = &WrongProtocolError{"the client speaks TLS, and this port does not: turn TLS off in the client, or " +
		"set GRPC_SERVER_USE_TLS=true"}
	errPlainText = &WrongProtocolError{"the client does not speak TLS, and this port does: turn TLS on in the client, " +
		"or set GRPC_SERVER_USE_TLS=false"}
)

// tlsHandshake is the first byte of a TLS connection.
const tlsHandshake = 0x16

// WrongProtocol returns a *WrongProtocolError if a connection without TLS that begins with input is one of HTTP/1.1 or
// TLS, else nil.
func WrongProtocol(input []byte) error {
	if len(input) > 0 && input[0] == tlsHandshake {
		return errTLS
	}
	for _, method := range []string{"GET /", "POST /", "HEAD /", "PUT /", "OPTIONS ", "CONNECT "} {
		if bytes.HasPrefix(input, []byte(method)) {
			return errHTTP1
		}
	}
	return nil
}

// WrongHandshake returns a *WrongProtocolError if err is that of a TLS handshake with a client without TLS, else nil.
func WrongHandshake(err error) error {
	if header := new(tls.RecordHeaderError); errors.As(err, header) {
		return errPlainText
	}
	return nil
}
