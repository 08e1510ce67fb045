//go:build !race

package xdsrules

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
	"ratelimit/src/rules/compile"
)

// TestHostile is about resources that are meant to hurt: they are answered with
// a clear word, without much memory.
func TestHostile(t *testing.T) {
	// Under 99 levels 60,000 of the smallest descriptors: two bytes each, with
	// places of 1,500.
	wide := &configv3.RateLimitConfig{Domain: "d", Descriptors: []*configv3.RateLimitDescriptor{{Key: "k"}}}
	last := wide.Descriptors[0]
	for range 98 {
		last.Descriptors = []*configv3.RateLimitDescriptor{{Key: "k"}}
		last = last.Descriptors[0]
	}
	for range 60_000 {
		last.Descriptors = append(last.Descriptors, &configv3.RateLimitDescriptor{})
	}
	tests := []struct {
		name  string
		value []byte
		want  string // in the outcome
	}{
		{"100 levels", levels(100), "no rules\n"},
		{"101 levels", levels(101), strings.Repeat("descriptors[0].",
			100) + "descriptors[0]: descriptors are nested more than 100 levels deep; use fewer levels"},
		{"9,000 levels", levels(9000), strings.Repeat("descriptors[0].",
			100) + "descriptors[0]: descriptors are nested more than 100 levels deep; use fewer levels"},
		{
			"many, deep down", wire(t, wide),
			"the set is too large: the paths of its parts are longer than 64 MB together; use fewer levels, or fewer descriptors",
		},
		{
			"300,000 empty ones", append([]byte{0x12, 1, 'd'}, bytes.Repeat([]byte{0x1a, 0}, 300_000)...),
			"xds resource 1: descriptors[2]: the descriptor has no key",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := outcome([]*anypb.Any{{TypeUrl: TypeURL, Value: test.value}}, compile.Options{})
			runtime.ReadMemStats(&after)
			if !strings.Contains(got, test.want) {
				t.Errorf("got %.300q, want %.300q", got, test.want)
			}
			if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; mb > 600 {
				t.Errorf("allocated %d MB", mb)
			} else {
				t.Logf("%d bytes, allocated %d MB", len(test.value), mb)
			}
			if len(got) > 1<<20 {
				t.Errorf("the outcome has %d bytes", len(got))
			}
		})
	}
}
