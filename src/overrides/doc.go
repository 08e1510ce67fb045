// Package overrides replaces the limits of single subjects while the service runs: it raises or lowers the limit of one
// user, or bans an address, for a reason and until a time. The rule files stay as they are.
//
//	Change    what replaces a limit: "1000/minute", "x10" or "ban"
//	Override  a Change for the subjects that a Pattern names, with its reason, its author and its end
//	Registry  the overrides that are known here: it looks them up for requests, and follows a Store
//	Store     keeps the overrides of all replicas: SharedStore, or FileStore for a replica with counters of its own
//
// The path of a request does not know overrides. Registry.Over returns a rules.Set whose domains search as before, and
// then replace the limits of what they found by those of the override.
package overrides
