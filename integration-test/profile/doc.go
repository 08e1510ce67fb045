// Package profile loads the service with calls of every kind, and writes src/cmd/ratelimit/calls.pgo: where its CPU
// time goes. The Go compiler reads that when it builds the program, and inlines what is called most.
//
// make profile writes it. It needs Redis, redis-benchmark and a machine that does nothing else for two minutes.
package profile
