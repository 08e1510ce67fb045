package h2

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"
)

// meaning says what a header field means to the server. The dynamic table keeps it, so that it is found once per text.
type meaning uint8

const (
	meansNothing meaning = iota // for valid fields that only Handler reads.
	meansPath
	meansMethod // meansMethod is the path of Config.Path.
	meansPost
	meansOtherVerb
	meansScheme
	meansAuthority
	meansGRPC       // meansGRPC is a content type of gRPC with protobuf.
	meansOtherCodec // meansOtherCodec is a content type of gRPC with another codec, or with parameters.
	meansOtherType  // meansOtherType is any other content type.
	meansTimeout
	meansBadTimeout // meansBadTimeout is a grpc-timeout that gRPC does not define.
	meansHost
	meansHosts     // meansHosts is a second host.
	meansBadBinary // meansBadBinary is binary metadata that is not base64.
	meansLength
	meansEncoding  // meansEncoding is a compression, or another thing that Decide does not understand.
	meansMalformed // meansMalformed is a field that RFC 9113 section 8.2 or 8.3 forbids, or the method CONNECT.
)

// Sets of meanings, a bit for each: those of :path, of :method, and of all pseudo-header fields of section 8.3.1.
const (
	pathMeanings   = 1<<meansPath | 1<<meansMethod
	verbMeanings   = 1<<meansPost | 1<<meansOtherVerb
	pseudoMeanings = pathMeanings | verbMeanings | 1<<meansScheme | 1<<meansAuthority
)

// nameMeanings has the meanings of names with most values. It has no entry for names that mean nothing.
var nameMeanings = map[string]meaning{
	":path": meansPath, ":method": meansOtherVerb, ":scheme": meansScheme, ":authority": meansAuthority,
	"content-type": meansOtherType, "grpc-timeout": meansTimeout, "content-length": meansLength,
	"grpc-encoding": meansEncoding,
	"host":          meansHost,
	"te":            meansMalformed, "connection": meansMalformed, "proxy-connection": meansMalformed,
	"keep-alive":        meansMalformed,
	"transfer-encoding": meansMalformed, "upgrade": meansMalformed,
}

// valueMeanings has the meanings of names with special values.
var valueMeanings = map[[2]string]meaning{
	{":path", ""}: meansMalformed, {":method", "POST"}: meansPost, {":method", "CONNECT"}: meansMalformed,
	{"content-type", "application/grpc"}: meansGRPC, {"content-type", "application/grpc+proto"}: meansGRPC,
	{"grpc-encoding", "identity"}: meansNothing, {"te", "trailers"}: meansNothing,
}

// classify returns what a field means to a server whose method has this path.
func classify(name, value []byte, methodPath string) meaning {
	m, isKnown := nameMeanings[string(name)]
	switch {
	case !isValidValue(value) || !isKnown && !isValidName(name):
		return meansMalformed
	case !isKnown && bytes.HasSuffix(name, []byte("-bin")) && !isBase64(value):
		return meansBadBinary
	case m == meansNothing || m == meansTimeout || m == meansLength || m == meansHost:
		return m
	case m == meansPath && len(value) > 0 && string(value) == methodPath:
		return meansMethod
	}
	if special, ok := valueMeanings[[2]string{string(name), string(value)}]; ok {
		return special
	}
	if m == meansOtherType && isGRPC(string(value)) {
		return meansOtherCodec
	}
	return m
}

// isBase64 reports whether value is base64, with or without padding.
func isBase64(value []byte) bool {
	encoding := base64.RawStdEncoding
	if len(value)%4 == 0 {
		encoding = base64.StdEncoding
	}
	_, err := encoding.DecodeString(string(value))
	return err == nil
}

// grpcType is the content type of gRPC.
const grpcType = "application/grpc"

// isGRPC reports whether a content type is gRPC's, with any codec and parameters.
func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, grpcType)
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// isNameByte has the bytes of which the names of fields consist: tokens of RFC 9110 section 5.6.2 without upper case.
var isNameByte = func() (table [256]bool) {
	for _, b := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz") {
		table[b] = true
	}
	return table
}()

// isValidName reports whether name is that of a field, and not of a pseudo-header field.
func isValidName(name []byte) bool {
	return len(name) > 0 && !slices.ContainsFunc(name, func(b byte) bool { return !isNameByte[b] })
}

// isValidValue reports whether value is free of line ends, NUL, and white space at either end (RFC 9113 section 8.2.1).
func isValidValue(value []byte) bool {
	return bytes.IndexByte(value, 0) < 0 && bytes.IndexByte(value, '\r') < 0 && bytes.IndexByte(value, '\n') < 0 &&
		len(bytes.Trim(value, " \t")) == len(value)
}

var timeoutUnits = [256]time.Duration{
	'n': time.Nanosecond, 'u': time.Microsecond, 'm': time.Millisecond, 'S': time.Second, 'M': time.Minute, 'H': time.Hour,
}

// parseTimeout reads a grpc-timeout, such as 20m for 20 ms. ok is false if it is not valid.
func parseTimeout(value []byte) (d time.Duration, ok bool) {
	const mostDigits, longest = 8, 24 * time.Hour // 99,999,999 hours would overflow.
	digits := len(value) - 1
	if digits < 1 || digits > mostDigits {
		return 0, false
	}
	n, err := strconv.ParseUint(string(value[:digits]), 10, 32)
	unit := timeoutUnits[value[digits]]
	if err != nil || unit == 0 {
		return 0, false
	}
	return min(time.Duration(n), longest/unit) * unit, true
}

// formatTimeout writes a grpc-timeout of at least a nanosecond, rounded down.
func formatTimeout(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return strconv.FormatInt(int64(max(d, 1)), 10) + "n"
	case d < time.Minute:
		return strconv.FormatInt(d.Microseconds(), 10) + "u"
	}
	return strconv.FormatInt(d.Milliseconds(), 10) + "m"
}
