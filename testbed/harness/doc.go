// Package harness starts what tests need beside them: processes that are killed, paused and restarted at the same
// address, a proxy that breaks connections on purpose, and certificates for TLS. Everything ends with its test.
package harness
