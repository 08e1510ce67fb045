package admin

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a goroutine of a handler or of a test is left.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
