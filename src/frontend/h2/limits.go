package h2

import (
	"time"

	"golang.org/x/net/http2"
)

const (
	maxWaste       = 1000 // how much waste a connection may have. Each setting is 1, and each frame that is not of a call.
	wastePerSecond = 1000 // how much waste is forgotten per second.
	wasteOfCall    = 4    // how much waste each answer makes up for.
	// maxCredit is for how much later waste answers can make up: when a store stands still, many clients take back their
	// calls while the answers are on the way.
	maxCredit       = 10_000
	wasteOfData     = 2    // how much waste is forgotten with long DATA, for which clients send two WINDOW_UPDATE.
	longData        = 1024 // the length of such a frame.
	minUsefulData   = 64   // the length of DATA that is no waste, and that is progress, unless it ends a stream.
	streamsPerWaste = 64   // how many streams a change of their windows may concern for 1 waste.
	windowGrowth    = 4    // windows that grow by a quarter or more beyond the largest so far are no waste.
	maxPingStrikes  = 2    // how many pings may come too early, as in other gRPC servers.

	maxPingAnswerTime = 20 * time.Second       // how long a client may take to answer a ping.
	maxStallTime      = 10 * time.Second       // how long a client may read nothing of what it has asked for.
	goAwayTime        = time.Second            // how long a client may take to learn of the first GOAWAY.
	lingerTime        = time.Second            // how long a client may take to close a connection after the server.
	shutdownPatience  = time.Second            // how long Shutdown waits for code that ignores its context.
	acceptPause       = 20 * time.Millisecond  // the time between two attempts to accept a connection.
	tickInterval      = 250 * time.Millisecond // the time between two checks of a connection.
	lateAfter         = 10 * time.Millisecond  // how long the reader waits for Decide before another goroutine reads on.
)

// limits is what bounds the time and the work of a connection.
type limits struct {
	waste    int       // negative if answers make up for later waste.
	lastTick time.Time // when the connection was last checked.
	leaveAt  time.Time // the end of Config.MaxConnectionAge.
	leftAt   time.Time // when the first GOAWAY was queued.
	goAwayID uint32    // the last stream of the last GOAWAY.
	pingedAt time.Time // when the server last sent livePing.
	lastPing time.Time // when the client sent its last PING.

	pingStrikes int // counts PINGs that came too early.
}

// forgetWaste subtracts up to n from the waste.
func (c *conn) forgetWaste(n int) { c.waste -= min(n, max(c.waste, 0)) }

// creditAnswers makes up for waste with n answers.
func (c *conn) creditAnswers(n int) { c.waste = max(c.waste-n*wasteOfCall, -maxCredit) }

// watchConns checks all connections until the server stops.
func (s *Server) watchConns() {
	for conns := []*conn(nil); ; clear(conns) {
		interval := tickInterval
		if s.cfg.DecideWaits { // More connections are checked less often, so that checks stay cheap.
			interval = min(lateAfter+time.Duration(len(conns))*lateAfter/1000, tickInterval)
		}
		select {
		case <-time.After(interval):
		case <-s.ctx.Done():
			return
		}
		now := time.Now()
		conns = s.openConns(conns[:0])
		for _, c := range conns {
			if c.mu.TryLock() { // For a busy connection, the next check is soon enough.
				c.check(now)
				c.mu.Unlock()
			}
		}
	}
}

// check hands over a batch that is late. Every tickInterval it also ends a connection whose time is up. The caller
// holds mu.
func (c *conn) check(now time.Time) {
	cfg, silence, isTick := &c.server.cfg, now.Sub(c.lastRead), now.Sub(c.lastTick) >= tickInterval
	if c.deciding != nil && silence > lateAfter {
		c.handOver()
	}
	if !isTick {
		return
	}
	c.lastTick = now
	isPinged, isOld := c.pingedAt.After(c.lastRead), cfg.MaxConnectionAge > 0 && now.After(c.leaveAt)
	switch {
	case c.phase < open || c.phase == closed:
		return // The connection has a read deadline.
	case c.isStalled(now):
		c.server.Stalled.Add(1)
		c.closeLocked()
	case isPinged && now.Sub(c.pingedAt) > maxPingAnswerTime:
		c.closeLocked()
	case !isPinged && cfg.MaxClientSilence > 0 && silence > cfg.MaxClientSilence:
		c.pingedAt = now
		c.sendSoon(appendFrame(nil, http2.FramePing, 0, 0, livePing))
	case isOld && c.phase == open:
		c.leave("the connection has reached its age")
	case isOld && cfg.MaxConnectionAgeGrace > 0 && now.After(c.leaveAt.Add(cfg.MaxConnectionAgeGrace)):
		c.closeLocked()
	case c.phase == leaving && now.Sub(c.leftAt) > goAwayTime:
		c.endLeaving()
	case silence > shrinkAfter && c.deciding == nil && !c.isShrunk:
		_ = c.net.SetReadDeadline(now) // This wakes up the reader, which calls shrink.
	}
}

// isStalled reports whether the client has not read for maxStallTime, on the connection or on a stream. Streams that
// wait for the window of the connection take turns.
func (c *conn) isStalled(now time.Time) bool {
	for _, s := range c.streams {
		if len(s.out) > 0 && now.Sub(s.lastProgress) > maxStallTime &&
			(!s.isBlocked || now.Sub(c.lastProgress) > maxStallTime) {
			return true
		}
	}
	return c.isWriting && now.Sub(c.writeBegan) > maxStallTime
}
