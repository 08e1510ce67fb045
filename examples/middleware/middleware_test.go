package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
	"ratelimit/src/limiter"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

func start(t *testing.T, store backend.Backend) http.Handler {
	t.Helper()
	set, _, err := filerules.Load([]filerules.File{{Name: "rules.yaml", Data: []byte(ruleFile)}}, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := limiter.New(limiter.Config{Backend: store})
	l.UseRules(set)
	return Limit(l, "web", byAddress, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
}

func get(h http.Handler, from string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = from
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func TestLimit(t *testing.T) {
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h := start(t, store)
	var last *http.Response
	for range 6 { // and more, if a minute ends meanwhile
		if last = get(h, "192.0.2.1:1"); last.StatusCode != http.StatusOK {
			break
		}
	}
	for range 6 {
		if last.StatusCode == http.StatusTooManyRequests {
			break
		}
		last = get(h, "192.0.2.1:1")
	}
	if last.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("got %d", last.StatusCode)
	}
	seconds, err1 := strconv.Atoi(last.Header.Get("Retry-After"))
	ms, err2 := strconv.Atoi(last.Header.Get("Retry-After-Ms"))
	if err1 != nil || err2 != nil || seconds < 1 || seconds > 60 || ms <= 1000*(seconds-1) || ms > 1000*seconds {
		t.Errorf("wait for %d s, %d ms", seconds, ms)
	}
	if got := get(h, "192.0.2.2:1").StatusCode; got != http.StatusOK {
		t.Errorf("another address: %d", got)
	}
	if got := get(h, "nowhere").StatusCode; got != http.StatusOK {
		t.Errorf("no address: %d", got)
	}
}

func TestStoreError(t *testing.T) {
	store, err := redis.New(redis.Config{Addr: "127.0.0.1:1", Config: remote.Config{Timeout: 500 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- store.Run(ctx) }()
	if got := get(start(t, store), "192.0.2.1:1").StatusCode; got != http.StatusInternalServerError {
		t.Errorf("got %d", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRefuseForEver(t *testing.T) {
	w := httptest.NewRecorder()
	refuse(w, algorithm.Never)
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "" {
		t.Errorf("%d, %v", w.Code, w.Header())
	}
}
