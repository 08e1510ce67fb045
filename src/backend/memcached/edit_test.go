package memcached

import (
	"bufio"
	"errors"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/testbed/memcachedtest"
)

// A server that does not list its keys is an error that says so.
func TestNoDump(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{Args: []string{"-X"}})
	store := open(t, Config{Servers: []string{server.Addr}})
	err := store.ResetPrefixes(t.Context(), []backend.KeyPrefix{{Text: []byte("d_")}}, true,
		func([][]byte) { t.Error("it was found") })
	if !errors.Is(err, errNoDump) || !strings.Contains(err.Error(), server.Addr) {
		t.Errorf("%v", err)
	}
}

func TestDumpLines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		line, key string
		end       bool
		problem   string
	}{
		{"key=d_user_alex_1 exp=-1 la=1 cas=2 fetch=no cls=3 size=80\r\n", "d_user_alex_1", false, ""},
		{"key=%7Bd_user_%7D%D0%BA exp=0 la=1\n", "{d_user_}к", false, ""},
		{"key=a+b exp=0\n", "a+b", false, ""},
		{"END\r\n", "", true, ""},
		{"BUSY currently processing crawler request\r\n", "", false, "another client"},
		{"ERROR metadump not allowed\r\n", "", false, "lru_crawler metadump"},
		{"CLIENT_ERROR lru crawler disabled\r\n", "", false, "lru_crawler metadump"},
		{"key=%zz exp=0\n", "", false, "cannot be read"},
		{"key=cut", "", false, "EOF"},
	} {
		key, end, err := readDumpLine(bufio.NewReader(strings.NewReader(tt.line)))
		if string(key) != tt.key || end != tt.end || (err != nil) != (tt.problem != "") || err != nil &&
			!strings.Contains(err.Error(), tt.problem) {
			t.Errorf("%q: %q, end %t, %v", tt.line, key, end, err)
		}
	}
}

func TestLongText(t *testing.T) {
	t.Parallel()
	store := open(t, Config{Servers: []string{memcachedtest.Start(t, memcachedtest.Options{}).Addr}})
	if err := store.SetText(t.Context(), "k", make([]byte, 2<<20), time.Minute); err == nil {
		t.Error("a text above 1 MiB was stored")
	}
}
