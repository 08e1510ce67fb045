//go:build !unix

package harness

import (
	"errors"
	"time"
)

// CPUTime, MakePipe and RaiseFileLimit do not work on this system: see those for Unix.

func CPUTime() (time.Duration, error) { return 0, errors.ErrUnsupported }

func MakePipe(string) error { return errors.ErrUnsupported }

func RaiseFileLimit(uint64) error { return errors.ErrUnsupported }
