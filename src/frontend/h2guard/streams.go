package h2guard

import (
	"time"

	"golang.org/x/net/http2"
)

// StreamBytes is about how many bytes a stream's handler and the server's records of it need.
const StreamBytes = 8 << 10

const (
	maxTokens       = 1000
	tokensPerSecond = 1000 // what a connection earns.
	tokensPerStream = 8    // what a new stream earns.
	// rapidResetTokens is the cost of a reset within rapidResetTime, besides that of its frame.
	rapidResetTokens = 9
	rapidResetTime   = 5 * time.Millisecond
	minFreeDataBytes = 64 // the length from which on DATA costs no token.
	// streamsPerSettingToken is how many open streams a server may change for one setting per token.
	streamsPerSettingToken = 256
	bytesPerPeakStream     = 64 // what servers keep for each stream of the most that were ever open.
	maxHeaderBytes         = 64 << 10
)

// tokenBucket holds the tokens of a connection. Below 0, the client has to wait.
type tokenBucket struct {
	tokens         float64
	lastRefillTime time.Duration
}

// refillTokens adds the tokens that the connection has earned since the last refill.
func (b *tokenBucket) refillTokens(now time.Duration) {
	b.tokens = min(b.tokens+(now-b.lastRefillTime).Seconds()*tokensPerSecond, maxTokens)
	b.lastRefillTime = now
}

// streamTable holds the streams of a connection, as its frames show them. recentResetBytes is the memory of streams
// that were reset since the last sweep, olderResetBytes that of streams that were reset in the sweep interval before.
type streamTable struct {
	clientFrames, serverFrames        frameScanner
	openStreams                       map[uint32]openStream
	lastOpenedStreamID                uint32
	peakOpenStreams                   int
	recentResetBytes, olderResetBytes int64
}

type openStream struct {
	heldBytes int64
	openedAt  time.Duration
}

// receiveFrame processes one frame from the client. It returns how many bytes to charge for it.
func (s *streamTable) receiveFrame(fr frameHeader, now time.Duration, b *tokenBucket) (bytes int64) {
	cost := 1.0
	switch fr.kind {
	case http2.FrameHeaders:
		if fr.streamID <= s.lastOpenedStreamID {
			break
		}
		s.lastOpenedStreamID = fr.streamID
		bytes = StreamBytes + headerMemoryBytes(fr.length)
		s.openStreams[fr.streamID] = openStream{bytes, now}
		if len(s.openStreams) > s.peakOpenStreams {
			s.peakOpenStreams++
			bytes += bytesPerPeakStream
		}
		b.tokens = min(b.tokens+tokensPerStream, maxTokens)
		return bytes
	case http2.FrameContinuation:
		bytes = s.growStream(s.lastOpenedStreamID, headerMemoryBytes(fr.length))
	case http2.FrameData:
		if fr.length >= minFreeDataBytes || fr.endsStream() {
			cost = 0
		}
		bytes = s.growStream(fr.streamID, dataMemoryBytes(fr.length))
	case http2.FrameRSTStream:
		s.resetStream(fr.streamID, now, b)
	case http2.FrameSettings:
		cost += float64(fr.length/settingBytes) * float64(1+len(s.openStreams)/streamsPerSettingToken)
	}
	b.tokens -= cost
	return bytes
}

// growStream adds bytes to a stream if it is open. It returns how many bytes it added.
func (s *streamTable) growStream(id uint32, bytes int64) int64 {
	st, open := s.openStreams[id]
	if !open {
		return 0
	}
	st.heldBytes += bytes
	s.openStreams[id] = st
	return bytes
}

// resetStream ends a stream whose handler may still run.
func (s *streamTable) resetStream(id uint32, now time.Duration, b *tokenBucket) {
	st, open := s.openStreams[id]
	if !open {
		return
	}
	delete(s.openStreams, id)
	s.recentResetBytes += st.heldBytes
	if now-st.openedAt < rapidResetTime {
		b.tokens -= rapidResetTokens
	}
}

// takeResetStreamBytes subtracts StreamBytes from olderResetBytes or recentResetBytes, if one has that many.
func (s *streamTable) takeResetStreamBytes() bool {
	for _, bytes := range [...]*int64{&s.olderResetBytes, &s.recentResetBytes} {
		if *bytes >= StreamBytes {
			*bytes -= StreamBytes
			return true
		}
	}
	return false
}

// headerMemoryBytes returns how many bytes a server holds for n bytes of compressed headers. One of them can stand for
// a name and a value that were sent before.
func headerMemoryBytes(n uint32) int64 { return min(8*int64(n), maxHeaderBytes) }

// dataMemoryBytes returns how many bytes a server holds for a DATA frame of n bytes. grpc-go uses
// buffers of 4 and 16 KiB for frames above 1 KiB, and some 150 bytes for each frame.
func dataMemoryBytes(n uint32) int64 {
	const perFrame = 160
	switch {
	case n > 1<<10 && n <= 4<<10:
		n = 4 << 10
	case n > 4<<10 && n <= 16<<10:
		n = 16 << 10
	}
	return int64(n) + perFrame
}
