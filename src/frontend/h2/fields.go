package h2

import (
	"strconv"
	"strings"
	"time"
)

// meaning says what a header field means to the server. The dynamic table keeps it, so that it is found once per text.
type meaning uint8

const (
	meansNothing meaning = iota // meansNothing is for valid fields that only Handler reads.
	meansPath
	meansMethod // meansMethod is the path of Config.Path.
	meansPost
	meansOtherVerb
	meansScheme
	meansAuthority
	meansGRPC      // meansGRPC is a content type of gRPC with protobuf.
	meansOtherType // meansOtherType is any other content type.
	meansTimeout
	meansLength
	meansEncoding    // meansEncoding is a compression that Decide does not understand.
	meansMalformed   // meansMalformed is a field that RFC 9113 section 8.2 or 8.3 forbids.
	meansUnsupported // meansUnsupported is the method CONNECT.
)

// Sets of meanings, a bit for each: those of :path, of :method, and of all pseudo-header fields of section 8.3.1.
const (
	pathMeanings   = 1<<meansPath | 1<<meansMethod
	verbMeanings   = 1<<meansPost | 1<<meansOtherVerb
	pseudoMeanings = pathMeanings | verbMeanings | 1<<meansScheme | 1<<meansAuthority | 1<<meansUnsupported
)

// isPseudo reports whether the field is a pseudo-header field.
func (m meaning) isPseudo() bool { return pseudoMeanings>>m&1 != 0 }

// classifier returns the function that finds the meaning of a field for a server whose method has this path.
func classifier(methodPath string) func(name, value []byte) meaning {
	return func(name, value []byte) meaning {
		if !isValidName(name) || !isValidValue(value) {
			return meansMalformed
		}
		switch string(name) {
		case ":path":
			switch {
			case len(value) == 0:
				return meansMalformed
			case string(value) == methodPath:
				return meansMethod
			}
			return meansPath
		case ":method":
			switch string(value) {
			case "POST":
				return meansPost
			case "CONNECT":
				return meansUnsupported
			}
			return meansOtherVerb
		case ":scheme":
			return meansScheme
		case ":authority":
			return meansAuthority
		case "content-type":
			if s := string(value); s == "application/grpc" || s == "application/grpc+proto" {
				return meansGRPC
			}
			return meansOtherType
		case "grpc-timeout":
			return meansTimeout
		case "content-length":
			return meansLength
		case "grpc-encoding":
			if string(value) != "identity" {
				return meansEncoding
			}
		case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
			return meansMalformed
		case "te":
			if string(value) != "trailers" {
				return meansMalformed
			}
		default:
			if name[0] == ':' {
				return meansMalformed
			}
		}
		return meansNothing
	}
}

// isNameByte has the bytes of which the names of fields consist: tokens of RFC 9110 section 5.6.2 without upper case.
var isNameByte = func() (table [256]bool) {
	for _, b := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz") {
		table[b] = true
	}
	return table
}()

func isValidName(name []byte) bool {
	if len(name) > 1 && name[0] == ':' {
		name = name[1:]
	}
	for _, b := range name {
		if !isNameByte[b] {
			return false
		}
	}
	return len(name) > 0
}

// isValidValue reports whether value is free of line ends, NUL, and white space at either end (RFC 9113 section 8.2.1).
func isValidValue(value []byte) bool {
	for _, b := range value {
		if b <= '\r' && (b == 0 || b == '\r' || b == '\n') {
			return false
		}
	}
	n := len(value)
	return n == 0 || !isSpace(value[0]) && !isSpace(value[n-1])
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' }

// parseTimeout reads a grpc-timeout, such as 20m for 20 ms. It returns false if the text is not valid.
// A timeout of 0, which has passed already, becomes a nanosecond.
func parseTimeout(value []byte) (time.Duration, bool) {
	last := len(value) - 1
	if last < 1 || last > 8 {
		return 0, false
	}
	n := time.Duration(0)
	for _, b := range value[:last] {
		if b < '0' || b > '9' {
			return 0, false
		}
		n = 10*n + time.Duration(b-'0')
	}
	unit := time.Duration(0)
	switch value[last] {
	case 'n':
		unit = time.Nanosecond
	case 'u':
		unit = time.Microsecond
	case 'm':
		unit = time.Millisecond
	case 'S':
		unit = time.Second
	case 'M':
		unit = time.Minute
	case 'H':
		unit = time.Hour
	default:
		return 0, false
	}
	const longest = 24 * time.Hour // 99,999,999 hours would overflow.
	return max(min(n, longest/unit)*unit, 1), true
}

// parseLength reads a content-length; -1 if it is not valid.
func parseLength(value []byte) int64 {
	if strings.Trim(string(value), "0123456789") != "" {
		return -1
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return -1
	}
	return n
}
