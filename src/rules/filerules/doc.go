// Package filerules reads rule files of all formats, compiles them into one Set, and does so again whenever they
// change.
//
//	YAML, with `domain` or `schema`, in *.json too  ->  yamlrules   \
//	*.ini, and *.json of divvy                      ->  divvyrules  -> configurations -> reload -> *rules.Set
//
// [Load] compiles files that have been read, on all CPUs. [Read] reads a directory or a
// file. A [Watcher] does both whenever the contents change:
//
//	          +----------------------- an event, Reload or Poll ----------------------+
//	          v                                                                       |
//	scan (watch, then read) --> changed during the scan? --no--> compile --> OnLoad --> wait
//	          ^                          |                      (if new)              |
//	          +--- quiet for Debounce ---+                                            |
//	   ReadTimeout exceeded: refused with the place that hangs -----------------------+
//
// An event only starts a scan; the contents decide whether there is something to load. So one path serves editors that
// write in place or rename, a Kubernetes ConfigMap that swaps its ..data link, a link to a release directory, and a
// directory that disappears and returns. PollInterval finds changes on file systems without events, such as NFS.
//
// A link to a rule file may lead anywhere. Data files are opened beneath the directory ([os.Root]), so no link to one
// leads outside.
//
// Each scan runs in a goroutine. After ReadTimeout the Watcher no longer waits for it, and later scans stop at the same
// place until the file there is replaced, Reload is called, or the read returns: one hanging file costs one goroutine.
package filerules
