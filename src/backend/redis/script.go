package redis

import (
	"crypto/sha1" //nolint:gosec // the name Redis gives scripts, not a secret
	_ "embed"
	"encoding/hex"
)

// takeScript does what INCRBY cannot: all algorithms but fixed_window, fixed windows that do not count refused hits, refunds,
// which stop at zero, and groups of hits that are charged together or not at all.
//
// KEYS has a key for each hit, in order. A key may occur twice. ARGV has the time in µs since the Unix epoch, or -1 for the clock
// of Redis, and then scriptArgsPerHit for each hit, see appendScriptArgs.
//
// The reply is 1 if the group was refused, else 0, the time, and replyNumbersPerHit numbers for each hit: 1 if it is over the
// limit, and the state before it, from which package algorithm makes the verdict. A hit that was not charged because the group
// was refused has a second state: the one it would find if the hits before it had been charged.
//
//go:embed take.lua
var takeScript string

const (
	scriptArgsPerHit     = 12
	replyNumbersPerState = 5
	replyNumbersPerHit   = 1 + replyNumbersPerState
)

// takeScriptSHA is the name under which Redis knows takeScript once it has seen it.
var takeScriptSHA = func() string {
	sum := sha1.Sum([]byte(takeScript))
	return hex.EncodeToString(sum[:])
}()
