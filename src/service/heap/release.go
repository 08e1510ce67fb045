package heap

import (
	"context"
	"runtime/debug"
	"time"
)

// quietBeforeRelease is how long no rules were loaded before memory is returned. Loads in quick succession use the same
// memory.
const quietBeforeRelease = 2 * time.Second

// AwaitRules tells that no requests are served before the first RulesLoaded. Until then the heap grows less.
func (t *Tuner) AwaitRules() {
	if t != nil {
		t.awaitsRules.Store(true)
	}
}

// RulesLoaded tells that rules were loaded, which may have left a lot of memory unused. It never blocks.
func (t *Tuner) RulesLoaded() {
	if t == nil {
		return
	}
	t.awaitsRules.Store(false)
	select {
	case t.rulesLoaded <- struct{}{}:
	default: // Run has not seen the load before.
	}
}

// Run returns the memory that loads of rules leave unused to the system, if it is a lot, until ctx ends.
func (t *Tuner) Run(ctx context.Context) error {
	if t == nil {
		return nil
	}
	var quiet <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.rulesLoaded:
			quiet = time.After(quietBeforeRelease)
		case <-quiet:
			quiet = nil
			t.returnUnused()
		}
	}
}

// returnUnusedMemory returns unused memory to the system, if it is a lot.
func returnUnusedMemory() {
	if u := memoryInUse(); u.isWorthRelease() {
		debug.FreeOSMemory()
	}
}

// isWorthRelease reports whether unused memory is to be returned to the system, which takes a collection.
//
//	live 250 MiB, 80 MiB unused  -> no
//	live 250 MiB, 100 MiB unused -> yes
func (u memoryUse) isWorthRelease() bool {
	return u.unusedHeapBytes > max(minGrowthBytes, u.liveHeapBytes/3)
}
