package redis

import (
	"crypto/fips140"
	"crypto/sha1" //nolint:gosec // the name Redis gives scripts, not a secret
	_ "embed"
	"encoding/hex"

	"ratelimit/src/algorithm"
)

// takeScript does what INCRBY cannot: all algorithms but fixed_window, fixed windows that do not count refused hits,
// refunds, which stop at zero, groups of hits that are charged together or not at all, and limits with holds.
//
// KEYS has the key of each hit, in order, followed by the key of its holds if that is another one. A key may occur
// twice. ARGV has the time in µs since the Unix epoch, or -1 for the clock of Redis, and then the arguments of each
// hit, see appendScriptArgs.
//
// The reply is 1 if the group was refused, else 0, the time, and for each hit 1 if it is over the limit, else 0, and
// stateNumbers numbers: the state before it, from which package algorithm makes the verdict. If its limit has holds,
// some of the holds that are open behind it follow, each with replyNumbersPerHold numbers. A hit that was not charged
// because the group was refused has a second state: the one it would find if the hits before it had been charged.
var takeScript = commonLua + windowLua + slidingLua + gcraLua + holdsLua + takeLua

// The parts of takeScript. The later ones use the earlier ones.
var (
	//go:embed common.lua
	commonLua string
	//go:embed window.lua
	windowLua string
	//go:embed sliding.lua
	slidingLua string
	//go:embed gcra.lua
	gcraLua string
	//go:embed holds.lua
	holdsLua string
	//go:embed take.lua
	takeLua string
)

const (
	scriptArgsPerHit     = 12
	scriptArgsOfHolds    = 5
	replyNumbersPerState = 5
	replyNumbersOfHolds  = 8
	holdsInReply         = 2 // which of the replyNumbersOfHolds says how many open holds follow
	replyNumbersPerHold  = 3
)

// stateNumbers returns how many numbers the state of a counter of l has.
func stateNumbers(l *algorithm.Limit) int {
	if l.Hold > 0 {
		return replyNumbersPerState + replyNumbersOfHolds
	}
	return replyNumbersPerState
}

// takeScriptSHA is the name under which Redis knows takeScript once it has seen it. Redis chose SHA-1; as it protects
// nothing, GODEBUG=fips140=only need not refuse it.
var takeScriptSHA = func() (name string) {
	fips140.WithoutEnforcement(func() {
		sum := sha1.Sum([]byte(takeScript))
		name = hex.EncodeToString(sum[:])
	})
	return name
}()
