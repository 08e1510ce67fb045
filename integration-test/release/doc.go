// Package release makes a release as .goreleaser.yaml says, without publishing it, and looks into every file of it:
// archives, packages, checksums, SBOMs, manual pages and completions. It boots a clean Debian in a container without
// network, installs the package, and waits for the first refused request. It runs the newest release before this one
// beside this one, on one Redis, and checks that they share counters.
//
// All of that takes minutes and needs the flag -full: `make release-check`. Without it the package checks only the form
// of the changelog, and that the files of a release agree with each other.
//
// With -full it needs root, git, the packages mmdebstrap, systemd-container, rpm, man-db, mandoc, zsh, fish and
// redis-server of Debian, and a mirror of Debian. It installs goreleaser, syft and actionlint as Go modules, once into
// the user's cache directory, where it also keeps the clean Debian.
package release
