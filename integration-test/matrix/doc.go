// Package matrix runs the tests of the stores with all versions of Redis, Valkey and Memcached that package registries
// offer, and unit tests with the two last releases of Go.
//
// make matrix-check runs it, and prints a table of versions and results. The servers of the PATH come first. Those of
// the next Debian are installed into the user's cache with apt-get, apart from the system's packages, and start with
// their own libraries, so this needs a Debian, but not root. One comes from a package of PyPI. REDIS_SERVER and
// MEMCACHED add servers of your own.
package matrix
