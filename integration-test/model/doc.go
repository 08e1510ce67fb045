// Package model is a second opinion on the whole service: a limiter that is slow
// and right by definition, schedules of calls, reloads, faults and clock moves, and
// a checker that says whether what the service answered can be true.
//
// The exact limiter shares no arithmetic with package algorithm, nor the reading
// of rules with package rules: it keeps each hit that counts with its time, and
// looks at them anew for every question (exact.go, kinds.go), and so it does with
// holds (holds.go). Waits are found by trying, not by formula. Calendars are those
// of package time (calendar.go).
//
// A Script is a schedule as a text that people read and edit (script.go, parse.go).
// Run plays one against a Service. The checker (checker.go) keeps all states that the
// store may be in: calls at once may have been served in any order, and one that
// failed may have been charged or not, now or later. An answer that none of the
// states explains is a Violation. Random makes scripts, Shrink smaller ones that
// still fail.
//
// Where nothing can be known, the checker says nothing: of counters that a store may
// have forgotten when the clock stepped back, or by its own clock.
//
// Of several replicas on one store no such checker could know much. TestRandomReplicas
// cuts them off from it at random, and adds up what passed.
//
// A script is played with
//
//	go test ./integration-test/model -run TestReplay -script /tmp/violation.txt
package model
