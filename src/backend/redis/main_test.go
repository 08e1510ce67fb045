package redis

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func causeOf(err error) string { return new(protocol).CauseOf(err) }
