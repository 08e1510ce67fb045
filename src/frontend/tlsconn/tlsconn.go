// Package tlsconn serves TLS, and charges the memory that a connection keeps for encrypted input to the account of the
// connection.
//
// A *tls.Conn has two buffers that grow and never shrink: one for records, and one for messages of TLS, such as those
// of the handshake. While a handshake waits for the client, it also keeps what it has parsed. None of that can be seen
// from outside, but TLS reads its input from an input:
//   - The space that it offers to Read is the free part of the first buffer: all of it, when TLS waits for the next
//     record.
//   - Input that is not the application's data is in the second buffer, which has at most twice as many bytes.
//   - A list of items of one byte takes 24 bytes of memory for 2 bytes of input.
package tlsconn

import (
	"context"
	"crypto/tls"
	"net"
)

const (
	// plannedBytes is how much a connection may keep without a charge: its owner plans for that.
	plannedBytes = 12 << 10
	// bufferPerByte is how many bytes of buffer a byte of a message takes.
	bufferPerByte = 2
	// parsedPerByte is how many bytes of memory a byte of a handshake takes, with its buffer, until the handshake ends.
	parsedPerByte = 16
)

// Account counts the memory of one connection.
type Account interface {
	HoldBytes(n int64) bool // HoldBytes adds n bytes. It returns false if the connection must be closed.
	ReleaseBytes(n int64)   // ReleaseBytes subtracts n bytes that HoldBytes added.
}

// input is the connection from which TLS reads. One goroutine at a time may use it, except for Write and Close.
type input struct {
	net.Conn
	account Account

	isOpen        bool // true if the handshake has ended.
	recordBytes   int  // the size of the buffer for records.
	messageBytes  int  // the size of the buffer for messages after the handshake.
	unusedBytes   int  // how much of the input was not data of the application.
	lastReadBytes int  // how much the last Read has read.
	chargedBytes  int64
}

// Read charges what TLS keeps while it waits for input, and reads.
func (in *input) Read(p []byte) (int, error) {
	in.recordBytes = max(in.recordBytes, len(p))
	messages := parsedPerByte * in.unusedBytes
	if in.isOpen {
		messages = max(bufferPerByte*in.unusedBytes, in.messageBytes)
	}
	if !in.charge(in.recordBytes + messages - plannedBytes) {
		return 0, net.ErrClosed
	}
	n, err := in.Conn.Read(p)
	in.unusedBytes += n
	in.lastReadBytes = n
	return n, err
}

// charge makes the charge that of n bytes. It returns false if the connection must be closed.
func (in *input) charge(n int) bool {
	charged := max(int64(n), 0)
	more := charged - in.chargedBytes
	in.chargedBytes = charged
	if more > 0 {
		return in.account.HoldBytes(more)
	}
	in.account.ReleaseBytes(-more)
	return true
}

// useData says that TLS has returned n bytes of data. At that time no message is unfinished, and what TLS has not
// looked at has come with the last read.
func (in *input) useData(n int) {
	in.unusedBytes = max(min(in.unusedBytes-n, in.lastReadBytes), 0)
}

// Conn is the server's side of a connection with TLS.
type Conn struct {
	*tls.Conn
	input *input
}

// Server returns a connection over raw. Its handshake must be done before it is used.
func Server(raw net.Conn, cfg *tls.Config, a Account) *Conn {
	in := &input{Conn: raw, account: a}
	return &Conn{tls.Server(in, cfg), in}
}

// HandshakeContext does the handshake.
func (c *Conn) HandshakeContext(ctx context.Context) error {
	err := c.Conn.HandshakeContext(ctx)
	c.input.isOpen, c.input.messageBytes = true, bufferPerByte*c.input.unusedBytes
	c.input.useData(0)
	return err
}

// Read reads data.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.input.useData(n)
	return n, err
}

// NetConn returns the connection under TLS.
func (c *Conn) NetConn() net.Conn { return c.input.Conn }

// Release ends the charge. It must be called after the last Read, unless the account is closed.
func (c *Conn) Release() { c.input.charge(0) }
