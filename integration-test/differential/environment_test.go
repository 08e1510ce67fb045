package differential

import (
	"math/rand/v2"
	"slices"
	"strings"
)

// environment is what both programs are started with, beside ports and addresses.
type environment struct {
	vars []string // "NAME=value"
}

// choices are the values of a variable; "" leaves it unset. The first is likelier.
var choices = []struct {
	name   string
	values []string
}{
	{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", []string{"", "", "", "true"}},
	{"LOCAL_CACHE_SIZE_IN_BYTES", []string{"", "", "1000000"}},
	{"LIMIT_RESPONSE_HEADERS_ENABLED", []string{"", "true"}},
	{"LIMIT_LIMIT_HEADER", []string{"", "", "x-limit"}},
	{"LIMIT_REMAINING_HEADER", []string{"", "", "X-Rest"}},
	{"LIMIT_RESET_HEADER", []string{"", "", "x-reset"}},
	{"NEAR_LIMIT_RATIO", []string{"", "", "0.5", "1", "0.33", "0"}},
	{"CACHE_KEY_PREFIX", []string{"", "", "p", "prefix:", "a_"}},
	{"SHADOW_MODE", []string{"", "", "", "", "true"}},
	{"QUOTA_MODE", []string{"", "", "", "", "", "", "true"}},
	{"RESPONSE_DYNAMIC_METADATA", []string{"", "true"}},
	{"REDIS_PERSECOND", []string{"", "true"}},
	{"EXPIRATION_JITTER_MAX_SECONDS", []string{"", "0", "1", "-5", "20"}},
	{"EXTRA_TAGS", []string{"", "", "", "zone:z1", "b:1,a:x.y"}},
	{"MERGE_DOMAIN_CONFIG", []string{"", "true"}},
	{"GRPC_ENGINE", []string{"", "", "grpc-go"}}, // upstream does not read it
}

func randomEnvironment(r *rand.Rand) environment {
	var e environment
	for _, c := range choices {
		if value := pick(r, c.values); value != "" {
			e.vars = append(e.vars, c.name+"="+value)
		}
	}
	return e
}

// has reports whether a variable is set; "NAME=value" asks for that value.
func (e environment) has(name string) bool {
	for _, v := range e.vars {
		if v == name || strings.HasPrefix(v, name+"=") {
			return true
		}
	}
	return false
}

// sameExpiries reports whether both programs choose the same expiry: without a random part.
func (e environment) sameExpiries() bool {
	return slices.ContainsFunc([]string{"0", "1", "-5"},
		func(jitter string) bool { return e.has("EXPIRATION_JITTER_MAX_SECONDS=" + jitter) })
}

func (e environment) String() string { return strings.Join(e.vars, " ") }

// randomFor returns the random numbers of one part of the run: they do not depend on other parts.
func randomFor(environment, configuration int) *rand.Rand {
	return rand.New(rand.NewPCG(*seed, uint64(environment)<<32|uint64(configuration)))
}
