package redis

import (
	"strings"

	"ratelimit/src/backend/remote"
)

// redirectOf returns what an error reply from the node at addr says of where to go
// instead; the reply itself if nothing.
func redirectOf(reply error, addr string) error {
	f := strings.Fields(reply.Error()) // redis: MOVED slot host:port
	switch {
	case len(f) > 1 && f[1] == "TRYAGAIN":
		return &remote.Redirect{Later: true, Err: reply}
	case len(f) != 4:
		return reply
	}
	at := strings.LastIndexByte(f[3], ':') // of IPv6 too
	if at < 0 {
		return reply
	}
	to, err := joinAddr(strings.Trim(f[3][:at], "[]"), f[3][at+1:], addr)
	if err != nil {
		return reply
	}
	return &remote.Redirect{To: to, Ask: f[1] == "ASK", Err: reply}
}
