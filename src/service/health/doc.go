// Package health knows whether this process should receive traffic, and if not, why.
//
//	health.go    the state of all parts, the probes that show it, and what is told when it changes
//	rules.go     the state of the rules, of each source of rules and of all together
//	warnings.go  what goes wrong beside the requests: full ports and lost log lines
package health
