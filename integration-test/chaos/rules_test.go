package chaos

import (
	"fmt"
	"strings"
	"time"

	"ratelimit/src/testbed/redistest"
)

const (
	domain = "chaos"

	// Windows are short, so that a trial sees several of them, and calls are
	// twice as many as may pass, so that nothing can be admitted too much and not
	// show.
	period = 2 * time.Second
	limit  = 20 // in each period

	thirds = 3 // values of each rule, one for each part of a cluster
)

// kind is how a rule counts, and so what the most is that it may admit.
type kind uint8

const (
	window kind = iota // limit in each period of the clock
	log                // limit in any time of a period
	bucket             // limit at once, and limit more in each period
)

// rule is a limit that calls are about.
type rule struct {
	name  string // the key of its descriptor
	kind  kind
	local bool   // counts in memory while its store does not answer; others say so
	yaml  string // of rate_limit
}

// rulesFor are those that a store can count by, in windows of so long.
func rulesFor(store storeName, period time.Duration) (list []rule) {
	add := func(name string, k kind, yaml string) {
		for _, local := range []bool{false, true} {
			r := rule{name: name + "_error", kind: k, local: local, yaml: yaml + fmt.Sprintf("period: %v, requests_per_unit: %d", period, limit)}
			if local {
				r.name = name + "_local"
			}
			list = append(list, r)
		}
	}
	add("fixed", window, "")
	if store == memcached {
		add("counter", window, "algorithm: sliding_window_counter, count_blocked: true, ")
		return list
	}
	add("log", log, "algorithm: sliding_window, ")
	add("bucket", bucket, "algorithm: gcra, ")
	return list
}

// ruleFile is the rules as a file.
func ruleFile(list []rule) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", domain)
	for _, r := range list {
		policy := "error"
		if r.local {
			policy = "local"
		}
		fmt.Fprintf(&b, "- {key: %s, rate_limit: {%s, on_store_failure: %s}}\n", r.name, r.yaml, policy)
	}
	return b.String()
}

// values of a rule's descriptor are such that, in a cluster of three, the first
// is counted by the first primary, and so on.
func values(r rule) [thirds]string {
	var found [thirds]string
	for n, missing := 0, thirds; missing > 0; n++ {
		value := fmt.Sprint("v", n)
		third := thirdOf(redistest.KeySlot(hashTag(r, value)))
		if found[third] == "" {
			found[third] = value
			missing--
		}
	}
	return found
}

// thirdOf is which of three primaries begins with a slot.
func thirdOf(slot int) int {
	const slots = 16384
	third := 0
	for third < thirds-1 && slot >= (third+1)*slots/thirds {
		third++
	}
	return third
}

// hashTag is what all counters of a value have in their names, and what places
// them in a cluster.
func hashTag(r rule, value string) string {
	return fmt.Sprintf("{%s_%s_%s_}", domain, r.name, value)
}
