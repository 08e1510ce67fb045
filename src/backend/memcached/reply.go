package memcached

import "bytes"

// isReply tells whether a line can be the reply to what we send: incr, decr, add
// and version. After one that cannot, nobody knows which reply is whose.
func isReply(line []byte) bool {
	text, whole := bytes.CutSuffix(line, crlf)
	switch {
	case !whole || len(text) == 0:
		return false
	case '0' <= text[0] && text[0] <= '9':
		for _, c := range text {
			if c < '0' || c > '9' {
				return false
			}
		}
		return true
	}
	switch string(text) {
	case "STORED", "NOT_STORED", "NOT_FOUND":
		return true
	}
	return isRefusal(line) || bytes.HasPrefix(line, version)
}

var version = []byte("VERSION ")
