package chaos

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// fault is a row of the table.
type fault struct {
	name, does string
	short      storeName            // has it in the short run
	unlike     map[storeName]string // why it does not apply
	effect     effect
	lost       int           // how often counts are lost, and can be used up again
	restarts   int           // how often the service forgets what it counted itself
	everywhere bool          // of a cluster, all servers have it
	atLeast    time.Duration // it lasts, to be felt, if trials are short
	named      bool          // the service knows the store by storeHost

	// begin returns how the fault ends, and what is to be put right once it was
	// measured.
	begin func(*testing.T, *trial) outage

	// virtual, for faults of the clock, is in place of all this: the fullest that
	// a limit was.
	virtual func(*testing.T, *store) fullness
}

// effect is what callers may notice.
type effect uint8

const (
	// felt: calls are not answered by the store while the fault lasts.
	felt effect = iota
	// unfelt: nearly all are.
	unfelt
	// passing: the fault ends by itself.
	passing
)

// outage is a fault under way.
type outage struct{ end, restore func() }

// trial is what a fault is about.
type trial struct {
	store   *store
	service *service
	keys    []key
	hosts   string // the service's /etc/hosts, if the fault is named
}

var errNotYet = errors.New("not yet")

const (
	onlyTopologies = "no replica; see *store killed*"
	onlyClusters   = "only Cluster"
	onlyRedis      = "only Redis"
)

// faults are the rows, in order.
var faults = slices.Concat(serverFaults, wayFaults, topologyFaults, refusals, surroundings)
