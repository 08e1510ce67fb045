package model

import (
	"fmt"
	"strings"
	"time"
)

// Script is a schedule. As a text it has a line for each step, and may have blank
// ones and comments:
//
//	store redis                               # one of Stores
//	rules                                     # in force from here on
//	  a: gcra 3/1m0s burst 2 counting
//	  b none shadow 50%: fixed_window 5/1h0m0s + sliding_window 2/1m0s interval 3s
//	  c: concurrency 3 hold 30s + fixed_window 5/2week zone Europe/Berlin starts monday hold 1m0s release
//	at 1.5s                                   # the clock, since Start; may go back
//	ask a=1 b=7*3                             # two descriptors, 1 and 3 units
//	ask a=1*0 | a=1 a=1 | a=2*-1              # three requests at once: a look, …, a refund
//	ask a=1@x*3                               # 3 units that are held under the name x, if rule a has holds
//	ask a=1@x:settle*2 | a=1@y:release        # x needed 2 units, y none
//	fault lost                                # until the next fault line
//	ask a=1
//	fault none
type Script struct {
	// Store is what counts: see Stores.
	Store string
	Steps []Step
}

// Start is where the clock of scripts begins: a Thursday on which all windows
// begin, too.
var Start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Stores are what a script may run on: the counters of one process, those split by
// second behind the over-limit cache, Redis, Redis behind that cache, Memcached,
// memory behind what honours on_store_failure, and one Redis that three replicas share.
var Stores = []string{"memory", "split", "redis", "cached-redis", "memcached", "fallback", "replicas"}

// Step is one line: exactly one field is set.
type Step struct {
	Rules Rules         // a reload
	Asks  []Ask         // requests at once
	Fault Fault         // "" is no fault step
	Clock bool          // At counts
	At    time.Duration // since Start
}

// Ask is a request.
type Ask []Descriptor

// Descriptor is one entry with an amount: below 0 a refund, 0 a look. Hold, if it is set, is a
// second entry that names a hold, and Action a third.
type Descriptor struct {
	Key, Value string
	Hold       string
	Action     Action
	Amount     int64
}

// Fault is what is wrong with the store.
type Fault string

// The faults.
const (
	// None ends what is wrong; the store is waited for.
	None Fault = "none"
	// Down: no server listens, and all connections have broken. Nothing is charged.
	Down Fault = "down"
	// Lost: requests arrive, and replies do not.
	Lost Fault = "lost"
	// Stall: nothing arrives, either way, until the fault ends: then all of it.
	Stall Fault = "stall"
	// Slow: replies take a while, but less than callers wait.
	Slow Fault = "slow"
	// Reset: all connections break once.
	Reset Fault = "reset"
	// Wipe: the store has lost all counters, and goes on.
	Wipe Fault = "wipe"
	// Crash: a replica ends while it answers the next request, and a new one starts when the fault ends.
	Crash Fault = "crash"
)

// Faults are all of them.
var Faults = []Fault{None, Down, Lost, Stall, Slow, Reset, Wipe, Crash}

// String is the script as a text; Parse reads it.
func (s *Script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "store %s\n", s.Store)
	for i := range s.Steps {
		b.WriteString(s.Steps[i].String())
	}
	return b.String()
}

// String is the step as a line, with its end.
func (st *Step) String() string {
	switch {
	case st.Rules != nil:
		var b strings.Builder
		b.WriteString("rules\n")
		for i := range st.Rules {
			fmt.Fprintf(&b, "  %s\n", st.Rules[i].String())
		}
		return b.String()
	case st.Asks != nil:
		words := []string{"ask"}
		for i, ask := range st.Asks {
			if i > 0 {
				words = append(words, "|")
			}
			for _, d := range ask {
				words = append(words, d.String())
			}
		}
		return strings.Join(words, " ") + "\n"
	case st.Fault != "":
		return fmt.Sprintf("fault %s\n", st.Fault)
	}
	return fmt.Sprintf("at %v\n", st.At)
}

// String is the descriptor as a script has it.
func (d Descriptor) String() string {
	text := d.Key + "=" + d.Value
	if d.Hold != "" {
		text += "@" + d.Hold
	}
	if d.Action != "" {
		text += ":" + string(d.Action)
	}
	if d.Amount != 1 {
		text += fmt.Sprintf("*%d", d.Amount)
	}
	return text
}
