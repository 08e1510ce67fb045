package datafile

import (
	"syscall"
	"unsafe"
)

// hugePageBytes is the size of a huge page.
const hugePageBytes = 2 << 20

// useHugePages asks the kernel for huge pages for the part of b that whole ones fit in, which is best before b is
// written. Searches of a large table then wait for main memory once, and not again for the address of the page. It has
// no effect if the system does not have them.
func useHugePages(b []byte) {
	start := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % hugePageBytes
	if uintptr(len(b)) < start+hugePageBytes {
		return
	}
	end := start + (uintptr(len(b))-start)&^(hugePageBytes-1)
	_ = syscall.Madvise(b[start:end], syscall.MADV_HUGEPAGE)
}
