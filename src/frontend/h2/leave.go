package h2

import (
	"encoding/binary"
	"time"
)

// maxGoAwayText is how many bytes of a reason a client gets.
const maxGoAwayText = 100

// appendGoAway appends a GOAWAY. Streams up to lastID are answered.
func appendGoAway(b []byte, lastID uint32, code errorCode, reason string) []byte {
	reason = reason[:min(len(reason), maxGoAwayText)]
	b = appendFrameHeader(b, 8+len(reason), frameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, lastID), uint32(code))
	return append(b, reason...)
}

// leave asks the client to use another connection, and ends this one after its calls.
func (c *conn) leave(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase < open {
		c.closeLocked()
		return
	}
	if c.phase == open {
		c.startLeaving(reason)
	}
}

// startLeaving sends the first GOAWAY. It allows all streams, because the client may be opening some. The caller holds mu.
func (c *conn) startLeaving(reason string) {
	c.phase, c.leftAt = leaving, time.Now()
	b := appendGoAway(nil, maxWindow, codeNone, reason)
	c.sendSoon(append(append(b, appendFrameHeader(nil, 8, framePing, 0, 0)...), goAwayPing...))
}

// endLeaving sends the second GOAWAY: the client knows of the first, so that later streams are ignored. The caller holds mu.
func (c *conn) endLeaving() {
	c.phase, c.goAwayID = lastCalls, c.lastStreamID
	c.sendSoon(appendGoAway(nil, c.goAwayID, codeNone, ""))
}

// sendSoon writes b in another goroutine, so that the caller need not wait for the client. The caller holds mu.
func (c *conn) sendSoon(b []byte) {
	c.out = append(c.out, b...)
	c.users++
	go func() {
		defer c.release()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.flush()
		c.endIfDone()
	}()
}

// endIfDone ends a connection that has answered its last call. The caller holds mu.
func (c *conn) endIfDone() {
	if c.phase == lastCalls && c.activeStreams == 0 && len(c.out) == 0 && !c.isWriting {
		c.finish()
	}
}
