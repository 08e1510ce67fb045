// Package monitoring breaks the built program for real, with a real Prometheus that scrapes it and has the shipped
// alerts, and waits until each alert fires, and until it is resolved after the fault is repaired. Then it asks
// Prometheus for every panel of the shipped dashboard.
//
// The faults run with `make monitoring-check`, in about three minutes; they need prometheus, redis-server and Envoy.
// Intervals are shortened: an alert for 10m waits a second, and rates are those of 10 s. All other tests take
// milliseconds.
package monitoring
