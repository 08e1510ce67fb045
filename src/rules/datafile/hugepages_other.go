//go:build !linux

package datafile

// useHugePages does nothing.
func useHugePages([]byte) {}
