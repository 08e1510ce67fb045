//go:build !race

package limiter_test

import (
	"errors"
	"fmt"
	"testing"

	"ratelimit/src/limiter"
)

// A request whose values cost too much is refused as too large. Equal values are compared once.
func TestRegexWorkIsBounded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		n        int
		value    func(i int) string
		tooLarge bool
	}{
		{"one value", 1, func(i int) string { return fmt.Sprint(i) }, false},
		{"300 equal values", 300, func(int) string { return "" }, false},
		{"300 values", 300, func(i int) string { return fmt.Sprint(i) }, true},
	} {
		l := start(t, limiter.Config{})
		l.UseRules(load(t, worstRegexes))
		req, a := expensive(tt.n, tt.value), new(limiter.Answer)
		err := l.Check(t.Context(), req, a)
		if is := errors.Is(err, limiter.ErrRequestTooLarge); is != tt.tooLarge || !is && err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err == nil && len(a.Charges) != tt.n {
			t.Errorf("%s: %d charges", tt.name, len(a.Charges))
		}
	}
}
