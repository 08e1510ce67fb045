package harness

import (
	"bytes"
	"io"
	"net"
	"time"
)

// PlayPackets returns what a server replies to a client at addr that sends these packets and then closes its side.
// serve serves a connection, and may return before it has ended. Each Read returns at most one packet.
func PlayPackets(serve func(net.Conn), addr net.Addr, packets ...[]byte) string {
	c := &packetConn{addr: addr, packets: packets, closed: make(chan struct{})}
	serve(c)
	<-c.closed
	return c.replies.String()
}

// CutPackets returns stream in packets of up to size() bytes.
func CutPackets(stream []byte, size func() int) (packets [][]byte) {
	for len(stream) > 0 {
		n := min(size(), len(stream))
		packets = append(packets, stream[:n])
		stream = stream[n:]
	}
	return packets
}

// packetConn is the server's end of the connection of PlayPackets.
type packetConn struct {
	net.Conn
	addr    net.Addr
	packets [][]byte
	replies bytes.Buffer
	closed  chan struct{}
}

func (c *packetConn) Read(p []byte) (int, error) {
	if len(c.packets) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.packets[0])
	if c.packets[0] = c.packets[0][n:]; len(c.packets[0]) == 0 {
		c.packets = c.packets[1:]
	}
	return n, nil
}

func (c *packetConn) Write(p []byte) (int, error)      { return c.replies.Write(p) }
func (c *packetConn) RemoteAddr() net.Addr             { return c.addr }
func (c *packetConn) SetReadDeadline(time.Time) error  { return nil }
func (c *packetConn) SetWriteDeadline(time.Time) error { return nil }

func (c *packetConn) Close() error {
	close(c.closed)
	return nil
}
