// Package differential runs this service and envoyproxy/ratelimit ("upstream") side by side, and compares what they do.
//
// Both programs get the same environment and the same rule files, and each has a Redis of its own. The test makes
// random environments, random rules for each, and random requests for those, over gRPC and /json. It compares:
//
//   - whether the rules are accepted, and what /rlconfig shows of them;
//   - answers: the code, every status with its limit, rest and reset, headers, and dynamic metadata;
//   - the keys, the values and the expiries in Redis after each request;
//   - the counters that a statsd server receives.
//
// A difference belongs to a class (classes_test.go), or fails the test. Each class quotes a sentence of
// docs/migrating.md, which a test looks up. A failure shows the environment, the rules and the requests, made as small
// as the difference allows.
//
// Upstream is built from its Go module, once, into the user's cache directory. It ends at some requests; the test then
// starts it again, and counts that.
//
// "make differential" plays 1,000 sets of rules, with these flags:
//
//	-full              plays at all; "go test" without it checks the classes and the generator
//	-configurations N  is the number of sets of rules, 1000 by default
//	-seed N            makes other environments, rules and requests, 1 by default
//	-environment N     plays only the N-th environment; a failure names it
//
// The clock is the real one. A request is sent to both programs early in a second, and what a test of one set of rules
// saw is thrown away if a second ended meanwhile.
package differential
