package redis

import (
	"testing"

	"go.uber.org/goleak"

	"ratelimit/testbed/harness"
)

func TestMain(m *testing.M) {
	harness.RunAtOnce(6)
	goleak.VerifyTestMain(m)
}

func causeOf(err error) string { return new(protocol).CauseOf(err) }
