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
// The store "replicas" is several services that share one Redis, where one after the other has a fault or
// crashes and is started anew (fleet_test.go). They keep nothing themselves, so the same checker judges them
// as one service. Of replicas that answer by themselves without the store it could not know much:
// TestRandomReplicas cuts them off at random, and adds up what passed.
//
// TestMutants and TestReplicaMutants show that the checker finds known mistakes.
//
// The tests have these flags; `make model` sets the second and the third:
//
//	-seeds 100    plays so many scripts on each store
//	-during 10m   plays for so long on each store, if -seeds is not set
//	-seed 7       is the seed of the first script, 1 by default; with 0 it is a random one
//	-script file  is what TestReplay plays
//
// Without flags a few scripts are played on each store. One store is chosen with -run, such as
// -run TestRandom/replicas.
//
// A script is played with
//
//	go test ./integration-test/model -run TestReplay -script /tmp/violation.txt
package model
