// Package service builds, runs and stops a whole rate limit service.
//
//	Config ─> New ─┬─> foundation  settings, log, figures, health
//	               ├─> ports       http, grpc, debug, health, prometheus, divvy, resp
//	               ├─> store       memory, Redis or Memcached, over-limit cache, fallback
//	               ├─> sinks       of figures
//	               ├─> observers   what the operator's page shows of decisions
//	               ├─> limiter     calls the store, tells figures and observers
//	               ├─> sources     rules from files or a management server, put in force in all parts
//	               └─> front ends  gRPC and /json, divvy's protocol, RESP, the operators' pages
//	Run ─> starts all parts in one group, waits for a signal, stops them in order
//
// Each part is made from those above it. A part that is off does nothing.
//
// `ratelimit serve` and `ratelimit divvy` are two configurations of it.
package service
