package remote

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// ErrStalled is the error of a connection whose server did not answer in time.
var ErrStalled = errors.New("the connection stalled")

// Conn is a connection to a server. One goroutine writes commands on it and then reads their replies. Read and Write
// set the deadlines. A Conn is read only while a reply is due, so a Read without bytes is a missing answer.
type Conn struct {
	net.Conn
	// Replies reads from the Conn.
	Replies          *bufio.Reader
	connUnderTLS     net.Conn // the connection under TLS. Without TLS it is the embedded Conn.
	peeker           *peeker  // finds out whether connUnderTLS has bytes to read
	openConnections  *atomic.Int64
	operationTimeout time.Duration // bounds the time of one Read or Write
	totalTimeout     time.Duration // bounds the time of all Reads and Writes since setTimeouts
	totalDeadline    time.Time     // the deadline of all Reads and Writes since setTimeouts
	lateReadUsed     bool          // lateReadTime has been used since setTimeouts
	lastReadGotBytes atomic.Bool   // true between a Read that got bytes and the next Read or Write
	// ValidUntil is when what Opener sent last, such as a token, expires, and RenewAt when Opener.Renew is due. Zero means
	// never. Only Opener sets them.
	ValidUntil, RenewAt time.Time
}

// replyBufferBytes is the size of Conn.Replies.
const replyBufferBytes = 16 << 10

// newConn returns an open connection. openConnections counts it until Close.
func newConn(conn net.Conn, openConnections *atomic.Int64) *Conn {
	c := &Conn{Conn: conn, connUnderTLS: conn, openConnections: openConnections}
	if secure, ok := conn.(*tls.Conn); ok {
		c.connUnderTLS = secure.NetConn()
	}
	c.peeker = newPeeker(c.connUnderTLS)
	c.Replies = bufio.NewReaderSize(c, replyBufferBytes)
	openConnections.Add(1)
	return c
}

// batchTimeoutFactor is how many times as long as one Read or Write a whole batch may take.
const batchTimeoutFactor = 2

var pastDeadline = time.Unix(1, 0)

// setTimeouts bounds each of the Reads and Writes from now on, and all of them together.
func (c *Conn) setTimeouts(each, all time.Duration) {
	c.operationTimeout, c.totalTimeout, c.totalDeadline, c.lateReadUsed = each, all, time.Now().Add(all), false
}

func (c *Conn) nextDeadline() time.Time {
	at := time.Now().Add(c.operationTimeout)
	if at.After(c.totalDeadline) {
		return c.totalDeadline
	}
	return at
}

// lateReadTime bounds the reading of a reply that arrived before the deadline, if this process
// was too busy to read it before. With TLS, only half a record may have arrived.
const lateReadTime = 10 * time.Millisecond

func (c *Conn) Read(p []byte) (int, error) {
	c.lastReadGotBytes.Store(false)
	if err := c.SetReadDeadline(c.nextDeadline()); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	if n == 0 && !c.lateReadUsed && errors.Is(err, os.ErrDeadlineExceeded) && c.hasBytes() {
		c.lateReadUsed = true
		if err := c.SetReadDeadline(time.Now().Add(lateReadTime)); err != nil {
			return 0, err
		}
		n, err = c.Conn.Read(p)
	}
	if n > 0 {
		c.lastReadGotBytes.Store(true)
	}
	return n, c.stallError(err)
}

func (c *Conn) Write(p []byte) (int, error) {
	c.lastReadGotBytes.Store(false)
	if err := c.SetWriteDeadline(c.nextDeadline()); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	return n, c.stallError(err)
}

// stallError returns err, or an ErrStalled if err says that a deadline has passed.
func (c *Conn) stallError(err error) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: no answer in %v, or not all of it in %v", ErrStalled, c.operationTimeout,
		c.totalTimeout.Round(time.Millisecond))
}

// hasBytes reports whether there are bytes to read, without reading them. It does not wait and is safe for concurrent
// use.
func (c *Conn) hasBytes() bool {
	hasBytes, _ := c.peeker.peek()
	return hasBytes
}

// isAnswering reports whether a reply has arrived and its batch has not ended yet. It is safe for concurrent use.
func (c *Conn) isAnswering() bool { return c != nil && (c.lastReadGotBytes.Load() || c.hasBytes()) }

// mustBeClosed reports whether the server has ended the connection, or sent bytes that no
// command asked for. Then the connection must be closed. No goroutine may read meanwhile.
func (c *Conn) mustBeClosed() bool {
	if hasBytes, ended := c.peeker.peek(); hasBytes || ended || c.Replies.Buffered() > 0 {
		return true
	}
	if c.connUnderTLS == c.Conn {
		return false
	}
	// TLS may hold bytes that it has read already. After its deadline, it returns only those.
	var b [1]byte
	err := c.SetReadDeadline(pastDeadline)
	if err == nil {
		_, err = c.Conn.Read(b[:])
	}
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// Close closes the connection. It must be called once.
func (c *Conn) Close() error {
	c.openConnections.Add(-1)
	return c.Conn.Close()
}

// abort closes a broken connection. It closes connUnderTLS first, because TLS would send a farewell,
// and wait for seconds if the server reads nothing.
func (c *Conn) abort() {
	_ = c.connUnderTLS.Close()
	_ = c.Close()
}
