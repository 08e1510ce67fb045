package redis

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"ratelimit/src/backend"
	"ratelimit/testbed/backendtest"
	"ratelimit/testbed/redistest"
)

// What docs/redis.md says is used of Redis is enough for everything.
func TestCommandsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "| for | commands |\n")
	text, _, ends := strings.Cut(text, "| Cluster |")
	if !found || !ends {
		t.Fatal("docs/redis.md has no table of the commands")
	}
	acl := []any{"ACL", "SETUSER", "me", "reset", "on", ">secret", "~*"}
	for _, m := range regexp.MustCompile("`([A-Z]+)`").FindAllStringSubmatch(text, -1) {
		acl = append(acl, "+"+strings.ToLower(m[1]))
	}
	if len(acl) < 20 {
		t.Fatalf("only %v", acl)
	}
	server := redistest.Start(t, redistest.Options{})
	server.Do(t, acl...)
	backendtest.Suite{UpstreamCounts: true, Brief: true}.Run(t, func(t *testing.T) backend.Backend {
		server.Do(t, "FLUSHALL")
		return open(t, Config{Addr: server.Addr, Credentials: func() (string, string, error) { return "me", "secret", nil }})
	})
}
