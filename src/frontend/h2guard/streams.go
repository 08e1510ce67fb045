package h2guard

import (
	"time"

	"golang.org/x/net/http2"
)

// StreamBytes is about what an open stream takes: its handler's goroutine with its
// stack, and the server's records of it.
const StreamBytes = 8 << 10

const (
	maxTokens    = 1000
	tokenRate    = 1000 // per second
	streamTokens = 8    // what a new stream earns
	resetTokens  = 9    // what a rapid reset costs, beside its frame
	rapid        = 5 * time.Millisecond
	smallData    = 64  // shorter DATA costs a token, unless it ends the stream
	perSetting   = 256 // open streams that a server changes for one setting at the cost of a token
	peakBytes    = 64  // what servers keep for each stream of the most that were open
	maxHeaders   = 64 << 10
)

// bucket holds the tokens of a connection; below 0, the client owes time.
type bucket struct {
	tokens   float64
	refilled time.Duration // when tokens was last brought up to date
}

func (b *bucket) refill(now time.Duration) {
	b.tokens = min(b.tokens+(now-b.refilled).Seconds()*tokenRate, maxTokens)
	b.refilled = now
}

// streams are the streams of a connection, as its frames show them.
type streams struct {
	in, out   frames
	open      map[uint32]stream
	last      uint32   // the highest stream that the client opened
	peak      int      // the most streams that were open
	lingering [2]int64 // bytes of streams that were reset: since the last sweep, and before it
}

// stream is an open stream.
type stream struct {
	bytes  int64
	opened time.Duration
}

// receive processes one frame from the client and returns how many bytes it adds.
func (s *streams) receive(fr frame, now time.Duration, b *bucket) (bytes int64) {
	cost := 1.0
	switch fr.kind {
	case http2.FrameHeaders:
		if fr.stream <= s.last {
			break
		}
		s.last = fr.stream
		bytes = StreamBytes + headerCost(fr.length)
		s.open[fr.stream] = stream{bytes, now}
		if len(s.open) > s.peak {
			s.peak++
			bytes += peakBytes
		}
		b.tokens = min(b.tokens+streamTokens, maxTokens)
		return bytes
	case http2.FrameContinuation:
		bytes = s.grow(s.last, headerCost(fr.length))
	case http2.FrameData:
		if fr.length >= smallData || fr.ended() {
			cost = 0
		}
		bytes = s.grow(fr.stream, dataCost(fr.length))
	case http2.FrameRSTStream:
		s.reset(fr.stream, now, b)
	case http2.FrameSettings:
		cost += float64(fr.length/settingLen) * float64(1+len(s.open)/perSetting)
	}
	b.tokens -= cost
	return bytes
}

// grow adds bytes to a stream if it is open, and returns what it added.
func (s *streams) grow(id uint32, bytes int64) int64 {
	st, open := s.open[id]
	if !open {
		return 0
	}
	st.bytes += bytes
	s.open[id] = st
	return bytes
}

// reset ends a stream whose handler may still run.
func (s *streams) reset(id uint32, now time.Duration, b *bucket) {
	st, open := s.open[id]
	if !open {
		return
	}
	delete(s.open, id)
	s.lingering[0] += st.bytes
	if now-st.opened < rapid {
		b.tokens -= resetTokens
	}
}

// endLingering takes StreamBytes off the streams that were reset, the oldest first, and
// reports whether there were as many.
func (s *streams) endLingering() bool {
	for _, i := range [...]int{1, 0} {
		if s.lingering[i] >= StreamBytes {
			s.lingering[i] -= StreamBytes
			return true
		}
	}
	return false
}

// headerCost returns what a server holds for n bytes of compressed headers, in which one
// byte can stand for a name and a value that were sent before.
func headerCost(n uint32) int64 { return min(8*int64(n), maxHeaders) }

// dataCost returns what a server holds for a DATA frame of n bytes: grpc-go takes buffers
// of 4 and 16 KiB for those above 1 KiB, and some 150 bytes for each.
func dataCost(n uint32) int64 {
	const perFrame = 160
	switch {
	case n > 1<<10 && n <= 4<<10:
		n = 4 << 10
	case n > 4<<10 && n <= 16<<10:
		n = 16 << 10
	}
	return int64(n) + perFrame
}
