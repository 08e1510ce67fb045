package harness

import (
	"errors"
	"testing"
	"time"
)

var errGone = errors.New("gone")

func TestFreePortsAreNotTheKernels(t *testing.T) {
	returned := make(map[int]bool)
	for range 500 { // of 22,768, so some would come twice
		port, err := FreePort()
		if err != nil || port >= firstEphemeralPort() && firstEphemeralPort() > 11000 {
			t.Errorf("port %d, %v; the kernel's begin at %d", port, err, firstEphemeralPort())
		}
		if returned[port] {
			t.Errorf("port %d came twice", port)
		}
		returned[port] = true
	}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	calls := 0
	if err := Retry(time.Minute, func() error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	}); err != nil || calls != 3 {
		t.Errorf("%d calls, %v", calls, err)
	}
	if err := Retry(time.Minute, func() error { return Permanent{Err: errGone} }); !errors.Is(err, errGone) {
		t.Error(err)
	}
	if err := Retry(0, func() error { return errGone }); !errors.Is(err, errGone) {
		t.Error(err)
	}
}
