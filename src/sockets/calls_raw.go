//go:build linux && (amd64 || arm64) && !race && !msan

package sockets

import (
	"syscall"
	"unsafe"
)

// Read reads from a socket that does not wait. It returns 0 bytes at the end of the input, and syscall.EAGAIN if
// nothing has arrived.
func Read(fd int, p []byte) (int, error) { return call(syscall.SYS_READ, fd, p, 0) }

// Write writes to a socket that does not wait. It returns syscall.EAGAIN if nothing can be written now.
func Write(fd int, p []byte) (int, error) { return call(syscall.SYS_WRITE, fd, p, 0) }

// Peek returns what Read of one byte would, without reading it.
func Peek(fd int) (int, error) {
	var b [1]byte
	return call(syscall.SYS_RECVFROM, fd, b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
}

// call makes a system call with p, its length and flags, again if a signal interrupts it.
func call(number uintptr, fd int, p []byte, flags uintptr) (int, error) {
	for {
		// SAFETY: the kernel accesses len(p) bytes of p, which is alive until the call returns.
		n, _, errno := syscall.RawSyscall6(number, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
			uintptr(len(p)), flags, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
