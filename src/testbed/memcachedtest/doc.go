// Package memcachedtest starts real Memcached servers for tests. It needs memcached 1.6 or later on the PATH; without it a test
// is skipped, or fails with CI=true.
//
// Everything listens on the loopback interface and ends with its test. The output of a failed test includes the logs of its
// servers.
package memcachedtest
