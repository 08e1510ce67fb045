// Package soak runs the built service for a chosen time under a mixed load: new keys,
// changing rules, a store and connections that come and go, clients that break every
// protocol, and scrapes. Then it checks whether the process grew.
//
//	make soak DURATION=10m
//
// How that is measured: every few seconds the live heap (after a collection that the
// sample itself asks for), goroutines, file descriptors and resident memory are
// written down. What comes in the first quarter is warming up: caches, tables and
// pools fill. The rest is cut in three parts, and of each part the low counts, the
// value that a tenth of its samples stay below: peaks come from what happens to be
// under way. A figure grows if its low rises from the first part to the second and
// again from the second to the third, each time by more than its noise. What rises
// once and stays has found its level. The short form, which runs with all tests, is over
// before caches and pools are full: it checks memory against a bound.
//
// When all traffic has ended, goroutines and descriptors have to be back, soon,
// where they were before it began. That finds what leaks slowly, too: what one in
// a thousand connections leaves behind is still there then.
package soak
