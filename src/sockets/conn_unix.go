//go:build unix

package sockets

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// Conn is a TCP connection or a stream over a Unix socket of package net. It behaves as that does, errors included.
type Conn struct {
	net.Conn
	raw     syscall.RawConn
	in, out operation
}

// operation is a Read or a Write.
type operation struct {
	wait func(try func(fd uintptr) (isDone bool)) error // calls try until it returns true
	try  func(fd uintptr) (isDone bool)

	mu     sync.Mutex // guards the fields below
	buffer []byte
	done   int   // how many bytes were read or written
	err    error // an error of the system
}

// New returns c as a *Conn if it is a TCP connection or Unix socket of package net; else c.
func New(c net.Conn) net.Conn {
	var socket syscall.Conn
	switch c := c.(type) {
	case *net.TCPConn:
		socket = c
	case *net.UnixConn:
		socket = c
	default:
		return c
	}
	raw, err := socket.SyscallConn()
	if err != nil || c.LocalAddr() == nil { // It is not open.
		return c
	}
	s := &Conn{Conn: c, raw: raw}
	s.in.wait, s.in.try = raw.Read, s.in.read
	s.out.wait, s.out.try = raw.Write, s.out.write
	return s
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.in.run(p)
	switch {
	case err != nil:
		return n, c.opError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.out.run(p)
	if err != nil {
		return n, c.opError("write", err)
	}
	return n, nil
}

// run reads into p or writes p.
func (o *operation) run(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buffer, o.done, o.err = p, 0, nil
	err := o.wait(o.try)
	o.buffer = nil
	if err == nil {
		err = o.err
	}
	return o.done, err
}

func (o *operation) read(fd uintptr) (isDone bool) {
	o.done, o.err = Read(int(fd), o.buffer)
	return o.err != syscall.EAGAIN
}

func (o *operation) write(fd uintptr) (isDone bool) {
	for {
		n, err := Write(int(fd), o.buffer[o.done:])
		o.done += n
		switch {
		case err == syscall.EAGAIN:
			return false
		case err != nil:
			o.err = err
			return true
		case o.done == len(o.buffer):
			return true
		case n == 0:
			o.err = io.ErrUnexpectedEOF
			return true
		}
	}
}

// opError returns the error that package net would return for err of op.
func (c *Conn) opError(op string, err error) error {
	if e, ok := errors.AsType[*net.OpError](err); ok {
		err = e.Err // such as a deadline
	} else {
		err = os.NewSyscallError(op, err)
	}
	return &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// CloseWrite closes the sending side.
func (c *Conn) CloseWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// SyscallConn returns the socket.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }
