// Package filerules makes rule Sets from a directory of YAML files, and makes
// them again whenever the contents change.
//
// What counts is what the files say, not how the file system tells of it. An
// event only leads to a look: everything is read anew, and a changed content is
// loaded. So one path serves an editor that writes in place or renames over, a
// Kubernetes ConfigMap that swaps its ..data link, a release directory behind a
// link that is swapped, and a directory that goes away and comes back. Where
// the file system tells nothing (NFS, for one), the look is taken at intervals.
//
// Files are opened beneath the directory, so no link in it leads outside. Each scan
// runs in a goroutine that is waited for at most Config.ReadTimeout. If a file system
// never answers, the scan is refused with the place where it hangs. Later scans stop
// at that place until the file there is another one, Reload was called, or the read
// has returned; so one hanging file costs one goroutine.
//
// A set is loaded whole or not at all. What to do about a refused one is up to
// the consumer, who is told with every problem that was found.
package filerules
