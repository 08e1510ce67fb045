// Package rules has the rules in force: an immutable [Set] of domains and their limits.
//
//	compile   configurations -> Set, problems and warnings
//	match     the matcher of each Domain, which finds the rule of a descriptor
//	rules     Set, Domain, Rule, and the keys of counters
//
// [Domain.FindRule] returns the Match of a descriptor: the limits that it is charged to. A [Rule] is one limit, with
// one counter for each subject. [KeyFormat] writes the key of each counter, and [Match.HoldOf] tells which hold a
// request is about.
package rules
