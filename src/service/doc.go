// Package service builds, runs and stops a whole rate limit service.
//
//	Config ─> New ─┬─> ports      http, grpc, debug, health, prometheus, divvy
//	               ├─> store      memory, Redis or Memcached, over-limit cache, fallback
//	               ├─> metrics    the registry and one sink
//	               ├─> limiter    calls the store, counts in the metrics
//	               ├─> rules      from files or a management server, given to the limiter
//	               └─> front ends gRPC and /json, divvy's protocol, the operators' pages
//	Run ─> starts all parts in one group, waits for a signal, stops them in order
//
// `ratelimit serve` and `ratelimit divvy` are two configurations of it.
package service
