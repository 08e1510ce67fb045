package remote

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"ratelimit/src/backend"
)

func TestCauseOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("redis: %w", backend.ErrOverload), CauseOverload},
		{fmt.Errorf("redis: %w", ErrTooManyCalls), CauseTooManyCalls},
		{JoinErrors([]error{nil, ErrTimeout}), CauseTimeout},
		{errors.New("?"), CauseOther},
	} {
		if got := CauseOf(tt.err); got != tt.want {
			t.Errorf("%v is counted as %s, want %s", tt.err, got, tt.want)
		}
	}
}

// What servers say is shown in short, and of many servers a few.
func TestErrorTextsAreShort(t *testing.T) {
	t.Parallel()
	long := errors.New(strings.Repeat("é", 100_000))
	var errs []error
	for range 16_384 {
		errs = append(errs, &LinkError{Store: "redis", Addr: "127.0.0.1:1", Err: long})
	}
	for _, err := range []error{errs[0], JoinErrors(errs), fmt.Errorf("redis: %w", JoinErrors(errs))} {
		text := err.Error()
		if len(text) > 2048 || !utf8.ValidString(text) {
			t.Errorf("%d bytes: %.100q", len(text), text)
		}
		if !errors.Is(err, long) {
			t.Error("it does not wrap what it shows")
		}
	}
	if text := JoinErrors(errs).Error(); !strings.HasSuffix(text, "; and 16381 more") {
		t.Errorf("it ends with %q", text[len(text)-40:])
	}
	if err := JoinErrors([]error{nil, nil}); err != nil {
		t.Errorf("none are %v", err)
	}
	if text := JoinErrors([]error{
		ErrTooManyCalls, nil,
		ErrTimeout,
	}).Error(); text != ErrTooManyCalls.Error()+"; "+ErrTimeout.Error() {
		t.Errorf("got %q", text)
	}
}
