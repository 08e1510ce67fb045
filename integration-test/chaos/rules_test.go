package chaos

import (
	"fmt"
	"strings"
	"time"

	"ratelimit/testbed/redistest"
)

const (
	domain      = "chaos"
	quotaDomain = "quotas_" + domain // for rules with quotas

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
	window       kind = iota // limit in each period of the clock
	log                      // limit in any time of a period
	bucket                   // limit at once, and limit more in each period
	calendar                 // limit in each day of calendarZone
	slots                    // limit units at a time, each for holdTime
	reservations             // a window in which units are reserved for holdTime, and then settled
)

// isHeld tells whether requests name holds.
func (k kind) isHeld() bool { return k == slots || k == reservations }

// holdIDKey is the key of the entry that names a hold.
const holdIDKey = "id"

// calendarZone has its borders at another time than most machines.
const calendarZone = "Asia/Kolkata"

var calendarLocation = func() *time.Location {
	zone, err := time.LoadLocation(calendarZone)
	if err != nil {
		panic(err)
	}
	return zone
}()

// windowAt is the window that an instant is in.
func (k kind) windowAt(at time.Time) (start, end time.Time) {
	if k == calendar {
		year, month, day := at.In(calendarLocation).Date()
		return time.Date(year, month, day, 0, 0, 0, 0, calendarLocation),
			time.Date(year, month, day+1, 0, 0, 0, 0, calendarLocation)
	}
	start = time.Unix(0, at.UnixNano()/int64(period)*int64(period))
	return start, start.Add(period)
}

// rule is a limit that calls are about.
type rule struct {
	domain string
	name   string // the key of its descriptor
	kind   kind
	local  bool   // counts in memory while its store does not answer; others say so
	yaml   string // of rate_limit
}

// rulesFor are those that a store can count by, in windows of so long.
func rulesFor(store storeName, period time.Duration) (list []rule) {
	add := func(name string, k kind, yaml string) { list = append(list, bothPolicies(domain, name, k, yaml)...) }
	every := fmt.Sprintf("period: %v, ", period)
	add("fixed", window, every)
	add("leased", window, "counting: leased, "+every)
	add("calendar", calendar, "unit: day, calendar: true, time_zone: "+calendarZone+", ")
	if store == memcached {
		add("counter", window, "algorithm: sliding_window_counter, count_blocked: true, "+every)
		return list
	}
	add("log", log, "algorithm: sliding_window, "+every)
	add("bucket", bucket, "algorithm: gcra, "+every)
	hold := fmt.Sprintf("hold: %v, hold_id: %s, ", period/2, holdIDKey)
	add("slots", slots, "algorithm: concurrency, "+hold)
	add("reserved", reservations, every+hold)
	return list
}

// bothPolicies are two rules with a limit: one whose requests fail while the store does not answer, and one that counts
// in memory.
func bothPolicies(domain, name string, k kind, yaml string) (list []rule) {
	for _, local := range []bool{false, true} {
		r := rule{
			domain: domain, name: name + "_error", kind: k, local: local,
			yaml: yaml + fmt.Sprintf("requests_per_unit: %d", limit),
		}
		if local {
			r.name = name + "_local"
		}
		list = append(list, r)
	}
	return list
}

// quotaRulesFor are the rules of quotas that a store can count.
func quotaRulesFor(store storeName) []rule {
	if store == memcached {
		return nil
	}
	return bothPolicies(quotaDomain, "quota", window, fmt.Sprintf("period: %v, ", period))
}

// ruleFile is the rules of one domain as a file.
func ruleFile(list []rule) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\nquota_buckets: %t\ndescriptors:\n", list[0].domain, list[0].domain == quotaDomain)
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
// is counted by the first primary, and so on. They begin with prefix.
func values(r rule, prefix string) [thirds]string {
	var found [thirds]string
	for n, missing := 0, thirds; missing > 0; n++ {
		value := fmt.Sprint(prefix, n)
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
	return fmt.Sprintf("{%s_%s_%s_}", r.domain, r.name, value)
}
