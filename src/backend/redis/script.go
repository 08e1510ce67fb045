package redis

import (
	"crypto/sha1" //nolint:gosec // the name Redis gives scripts, not a secret
	_ "embed"
	"encoding/hex"
)

// takeScript does what INCRBY cannot: every algorithm but fixed_window, fixed windows
// that do not count what they refuse, refunds, which stop at zero, and groups of hits
// that are charged whole or not at all.
//
// KEYS: one for each hit, in order; a key may be there twice. ARGV: the time in
// µs since the Unix epoch, or -1 for that of Redis, then scriptArgs for each
// hit, see appendArgs. It returns 1 if the group was refused, else 0,
// the time, and for each hit scriptReply numbers: 1 if it is over, and the state
// it found, from which package algorithm makes the verdict. Those that were not
// charged because the group was refused have, behind it, the state as if the
// hits before them had been charged.
//
//go:embed take.lua
var takeScript string

const (
	scriptArgs  = 12
	scriptState = 5
	scriptReply = 1 + scriptState
)

// takeSHA is the name under which Redis knows takeScript once it has seen it.
var takeSHA = func() string {
	sum := sha1.Sum([]byte(takeScript))
	return hex.EncodeToString(sum[:])
}()
