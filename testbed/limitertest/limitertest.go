// Package limitertest makes rules, stores in memory and limiters for tests.
package limitertest

import (
	"testing"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

// Rules returns the rules in the text of a YAML file. It fails the test if they have a problem.
func Rules(tb testing.TB, text string) *rules.Set {
	tb.Helper()
	return Load(tb, []filerules.File{{Name: "test.yaml", Data: []byte(text)}})
}

// Load returns the rules in files. It fails the test if they have a problem.
func Load(tb testing.TB, files []filerules.File) *rules.Set {
	tb.Helper()
	set, _, err := filerules.Load(files, compile.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return set
}

// Store returns an empty store.
func Store(tb testing.TB, cfg memory.Config) *memory.Store {
	tb.Helper()
	store, err := memory.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return store
}

// New returns a limiter with the rules in the text of a YAML file. Without a store in cfg, it has one in memory.
func New(tb testing.TB, cfg limiter.Config, text string) *limiter.Limiter {
	tb.Helper()
	if cfg.Backend == nil {
		cfg.Backend = Store(tb, memory.Config{})
	}
	l := limiter.New(cfg)
	l.UseRules(Rules(tb, text))
	return l
}
