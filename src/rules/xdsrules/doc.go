// Package xdsrules makes rule Sets from what a management server sends over xDS:
// resources of [TypeURL], one for each domain. They mean what the same keys mean
// in rule files, and are compiled by the same code, so they are refused and
// warned of in the same words. Where a file has a line, a resource has a path:
//
//	xds resource "edge": descriptors[2].rate_limit.unit: ...
//
// How the resources get here is not this package's business.
package xdsrules
