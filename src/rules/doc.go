// Package rules has the rules in force: an immutable [Set] of domains and their limits.
//
//	compile   configurations -> Set, problems and warnings
//	match     the matcher of each Domain, which finds the rule of a descriptor
//	rules     Set, Domain, Rule, and the keys of counters
//
// [Domain.FindRule] returns the rule of a descriptor. A match is charged to the rule's ChargedLimits, or to the rule
// itself if it has none. [KeyFormat] writes the key of each counter, and [Rule.HoldOf] tells which hold a request is
// about.
package rules
