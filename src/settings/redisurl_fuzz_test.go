package settings

import (
	"strings"
	"testing"
)

// What is in REDIS_URL is a place to dial, or refused in words that do not have
// it: there may be a password in it, wherever it went wrong.
func FuzzRedisURL(f *testing.F) {
	const secret = "s3cr3t!"
	for _, kind := range []string{"single", "SENTINEL", "cluster", "twin"} {
		for _, parts := range [][2]string{
			{"redis://user:", "@host:6379/1"},
			{"rediss://:", "@[::1]:7"},
			{"", ""},
			{"/run/", ".sock"},
			{"redis://host?db=2&password=", ""},
			{"main,a:1,redis://me:", "@b"},
			{"a:1,rediss://:", "@b,c:2"},
			{"redis://%zz:", "@host"},
			{"redis://user:", "@host:port"},
			{"http://", "/"},
			{"main,", ":99999"},
		} {
			f.Add(kind, parts[0], parts[1])
		}
	}
	f.Fuzz(func(t *testing.T, kind, before, after string) {
		url := before + secret + after
		at, err := ParseRedis(kind, url, func(word string) string { return "--redis-" + word })
		if err != nil {
			if !strings.Contains(kind, secret) && strings.Contains(err.Error(), secret) {
				t.Errorf("%s %q: the error tells the password: %v", kind, url, err)
			}
			return
		}
		if len(at.Addrs) == 0 {
			t.Errorf("%s %q: no address", kind, url)
		}
		for _, addr := range at.Addrs {
			// One server without a scheme is dialled as it is written.
			if addr != url && !isHostPort(addr) {
				t.Errorf("%s %q: %q is no address", kind, url, addr)
			}
		}
		switch at.Type {
		case "SINGLE":
			if len(at.Addrs) != 1 || at.SocketType != "tcp" && at.SocketType != "unix" {
				t.Errorf("%s %q: %+v", kind, url, at)
			}
		case "SENTINEL":
			if at.Primary == "" {
				t.Errorf("%s %q: no primary", kind, url)
			}
		case "CLUSTER":
		default:
			t.Errorf("type %q is taken", at.Type)
		}
	})
}
