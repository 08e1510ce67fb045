// Package redistest starts real Redis programs for tests: single servers, sentinels and clusters, with passwords and TLS. It
// needs redis-server and redis-sentinel 7.0 or later on the PATH; without them a test is skipped, or fails with CI=true.
//
// Everything listens on the loopback interface and ends with its test. The output of a failed test includes the logs of its
// programs.
//
// The package has its own user on every server ("redistest", without a password), so Do and the topologies work although a test
// changes or revokes the passwords of clients. Redis counts each Do as a connection and two commands (AUTH and the command).
package redistest
