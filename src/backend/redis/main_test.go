package redis

import (
	"testing"

	"go.uber.org/goleak"

	"ratelimit/testbed/harness"
)

func TestMain(m *testing.M) {
	harness.RunAtOnce(8)
	goleak.VerifyTestMain(m)
}

func causeOf(err error) string { return new(protocol).CauseOf(err) }
