// Package redistest starts real Redis programs for tests: single servers,
// sentinels and clusters, with passwords and TLS. It needs redis-server and
// redis-sentinel 7.0 or later on the PATH; a test that lacks them is skipped, or
// fails with CI=true.
//
// Everything listens on the loopback interface, keeps nothing beyond the test
// and is stopped in t.Cleanup. When a test fails, the logs of its programs are
// part of its output.
//
// The harness is a user of its own on every server ("redistest", who needs no
// password), so that Do and the topologies go on working when a test changes
// or revokes the passwords that clients use. It shows up in what Redis counts:
// each Do is a connection and two commands (AUTH and its own).
package redistest
