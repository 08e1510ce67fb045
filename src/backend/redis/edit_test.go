package redis

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/redistest"
)

// A search says which right is missing, and finds more keys than one SCAN returns.
func TestResetPrefixes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	server.Do(t, "DEBUG", "POPULATE", "3000", "d_user_")
	server.Do(t, "ACL", "SETUSER", "me", "reset", "on", ">secret", "~*", "+@all", "-scan")
	prefixes := []backend.KeyPrefix{{Text: []byte("d_user_")}}
	limited := open(t, Config{Addr: server.Addr, Credentials: me})
	err := limited.ResetPrefixes(t.Context(), prefixes, true, func([][]byte) {})
	if err == nil || !strings.Contains(err.Error(), "+scan") || !strings.Contains(err.Error(), server.Addr) {
		t.Errorf("without the right to SCAN: %v", err)
	}
	store, found := open(t, Config{Addr: server.Addr}), 0
	if err := store.ResetPrefixes(t.Context(), prefixes, false,
		func(names [][]byte) { found += len(names) }); err != nil || found < 3000 {
		t.Errorf("%d were found, %v", found, err)
	}
	if n := fmt.Sprint(server.Do(t, "DBSIZE")); n != "0" {
		t.Errorf("%s keys are left", n)
	}
}

func TestTextsExpire(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	store := open(t, Config{Addr: server.Addr})
	if err := store.SetText(t.Context(), "k", []byte("text"), time.Minute); err != nil {
		t.Fatal(err)
	}
	if ttl := fmt.Sprint(server.Do(t, "TTL", "k")); ttl != "60" && ttl != "59" {
		t.Errorf("it expires in %s s", ttl)
	}
}

func TestScanReplies(t *testing.T) {
	t.Parallel()
	prefixes := [][]byte{[]byte("a*"), []byte("ab")}
	if p := globEscaper.Replace(string(commonPrefix(prefixes))); p != "a" {
		t.Errorf("common prefix %q", p)
	}
	if p := globEscaper.Replace(`a*?[b]\c`); p != `a\*\?\[b\]\\c` {
		t.Errorf("escaped %q", p)
	}
	for _, tt := range []struct {
		reply []any
		keys  int
		bad   bool
	}{
		{[]any{"7", []any{"a*x", "abc", "ac", "ab"}}, 3, false},
		{[]any{"0", nil}, 0, false},
		{[]any{"0", []any{}}, 0, false},
		{nil, 0, true},
		{[]any{"0"}, 0, true},
		{[]any{"x", []any{}}, 0, true},
		{[]any{int64(0), []any{}}, 0, true},
		{[]any{"0", "a*"}, 0, true},
		{[]any{"0", []any{int64(1)}}, 0, true},
	} {
		if _, keys, err := readScanReply(tt.reply, prefixes); len(keys) != tt.keys || (err != nil) != tt.bad {
			t.Errorf("%v: %q, %v", tt.reply, keys, err)
		}
	}
	if remote.HasAnyPrefix([]byte("x"), prefixes) {
		t.Error("x has no prefix")
	}
}
