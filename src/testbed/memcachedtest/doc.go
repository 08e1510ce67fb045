// Package memcachedtest starts real Memcached servers for tests. It needs
// memcached 1.6 or later on the PATH; a test that lacks it is skipped, or fails
// with CI=true.
//
// Everything listens on the loopback interface and is stopped in t.Cleanup. When
// a test fails, the logs of its servers are part of its output.
package memcachedtest
