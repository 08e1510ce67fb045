//go:build unix && !(linux && (amd64 || arm64) && !race && !msan)

package sockets

import "syscall"

// These calls tell the Go scheduler that they are made. They tell the race detector that what a client of the same
// process does before a write happens before the server reads what was written.

// Read reads from a socket that does not wait. It returns 0 bytes at the end of the input, and syscall.EAGAIN if
// nothing has arrived.
func Read(fd int, p []byte) (int, error) {
	return again(func() (int, error) { return syscall.Read(fd, p) })
}

// Write writes to a socket that does not wait. It returns syscall.EAGAIN if nothing can be written now.
func Write(fd int, p []byte) (int, error) {
	return again(func() (int, error) { return syscall.Write(fd, p) })
}

// Peek returns what Read of one byte would, without reading it.
func Peek(fd int) (int, error) {
	return again(func() (int, error) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(fd, b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return n, err
	})
}

// again makes a system call, again if a signal interrupts it.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}
