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
// A set is loaded whole or not at all. What to do about a refused one is up to
// the consumer, who is told with every problem that was found.
package filerules
