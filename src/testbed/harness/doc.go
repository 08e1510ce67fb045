// Package harness starts the programs that tests need beside them, whichever they
// are: processes that are killed, paused and started again at the same place, a
// proxy that breaks connections on purpose, and certificates for TLS. Everything
// ends with its test.
package harness
