package h2

import (
	"cmp"
	"context"
	"encoding/binary"
	"math/bits"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// Batch is calls of one connection that arrived together. Config.Decide answers each once, in any order; else it gets
// INTERNAL.
type Batch struct {
	// Calls are the calls to answer, at least one. Refer to them by index: the connection may change other fields of a
	// Call meanwhile.
	Calls    []Call
	Received time.Time // when the calls arrived.

	conn     *conn
	ctx      context.Context
	all      []Call  // the calls of the batch. With Config.DecideWaits, Calls is the part of all with similar timeouts.
	byStream []int32 // the indices of all in the order of streams; empty before the first find.
	out      []byte  // the frames of the answers to Calls so far.
	buffer   []byte  // what messages refer to if the batch is handed over, else nil. conn.mu guards it.
}

// Call is one call.
type Call struct {
	Message []byte        // the message of the request, without compression. It is valid until Decide returns.
	Timeout time.Duration // how long the client waits from Batch.Received on; 0 for any time.

	streamID  uint32
	heldBytes int64 // what Message holds of the account; 0 if it refers to the read buffer.
	window    int64 // the send window relative to conn.initialWindow. conn.mu guards it and isReset.
	isReset   bool
	// start and end are the bounds of the answer in Batch.out; end is 0 before it. dataBytes is the length of DATA; 0 for
	// failures.
	start, end, dataBytes int
}

// releaseBatch returns b for reuse.
func (s *Server) releaseBatch(b *Batch) {
	clear(b.all)
	*b = Batch{all: b.all[:0], byStream: b.byStream[:0], out: b.out[:0]}
	if cap(b.out) > maxKeptAnswers {
		b.out = nil
	}
	s.batches.Put(b)
}

// Context ends with the connection and, with Config.DecideWaits, after the longest timeout of Calls.
func (b *Batch) Context() context.Context { return b.ctx }

// find returns the call of a stream; nil if there is none. No call follows any more. The caller holds conn.mu.
func (b *Batch) find(streamID uint32) *Call {
	if len(b.byStream) == 0 {
		for i := range b.all {
			b.byStream = append(b.byStream, int32(i))
		}
		slices.SortFunc(b.byStream, func(x, y int32) int { return cmp.Compare(b.all[x].streamID, b.all[y].streamID) })
	}
	i, ok := slices.BinarySearchFunc(b.byStream, streamID, func(i int32, id uint32) int {
		return cmp.Compare(b.all[i].streamID, id)
	})
	if !ok {
		return nil
	}
	return &b.all[b.byStream[i]]
}

// sort sorts the calls by timeout, because the store gives up at the shortest timeout of a batch. The caller holds
// conn.mu.
func (b *Batch) sort() {
	byTimeout := func(x, y Call) int { return cmp.Compare(timeoutClass(x.Timeout), timeoutClass(y.Timeout)) }
	if !slices.IsSortedFunc(b.all, byTimeout) {
		slices.SortStableFunc(b.all, byTimeout)
	}
}

// decide decides all calls. With Config.DecideWaits, calls with similar timeouts are a part, which is decided and sent
// on its own.
func (b *Batch) decide() {
	if last := len(b.all) - 1; !b.conn.server.cfg.DecideWaits ||
		timeoutClass(b.all[0].Timeout) == timeoutClass(b.all[last].Timeout) {
		b.decidePart(b.all)
		return
	}
	var parts sync.WaitGroup
	for start, end := 0, 0; start < len(b.all); start = end {
		for end < len(b.all) && timeoutClass(b.all[end].Timeout) == timeoutClass(b.all[start].Timeout) {
			end++
		}
		calls := b.all[start:end]
		parts.Go(func() {
			part := b.conn.server.batches.Get().(*Batch)
			part.conn, part.Received = b.conn, b.Received
			part.decidePart(calls)
			b.conn.mu.Lock()
			b.conn.sendAnswers(part)
			b.conn.mu.Unlock()
			b.conn.server.releaseBatch(part)
		})
	}
	parts.Wait()
}

// decidePart lets Config.Decide answer calls within the longest of their timeouts. Calls without an answer fail, as
// after a panic.
func (b *Batch) decidePart(calls []Call) {
	cfg, longest := &b.conn.server.cfg, time.Duration(0)
	for i := range calls {
		longest = max(longest, calls[i].Timeout)
	}
	b.ctx, b.Calls, b.out = b.conn.ctx, calls, b.out[:0]
	if cfg.DecideWaits && longest > 0 {
		var cancel context.CancelFunc
		b.ctx, cancel = context.WithDeadline(b.ctx, b.Received.Add(longest))
		defer cancel()
	}
	defer func() {
		if p := recover(); p != nil {
			cfg.OnPanic(p, debug.Stack())
		}
		for i := range calls {
			if calls[i].end == 0 {
				b.Fail(i, grpcInternal, "internal error")
			}
		}
	}()
	cfg.Decide(b)
}

// timeoutClass returns the same number for timeouts that differ by less than an eighth. No timeout (0) is the longest.
func timeoutClass(d time.Duration) int {
	if d == 0 {
		return 1 << 10
	}
	exponent := bits.Len64(uint64(d))
	return exponent<<3 | int(uint64(d)<<3>>(exponent-1)&7)
}

const (
	grpcInvalidArgument  = 3
	grpcDeadlineExceeded = 4
	grpcInternal         = 13

	deadlineText       = "context deadline exceeded" // what gRPC servers say.
	messagePrefixBytes = 5                           // the size of a flag for compression and of the length of a message.
	maxKeptAnswers     = 64 << 10                    // how many bytes of answers a batch keeps for its next use.
	maxErrorText       = 4 << 10                     // how many bytes of an error text a client gets.
)

// Header blocks of answers. They use no dynamic table, so that they are always the same.
var (
	// ":status: 200" is number 8 of the static table.
	grpcHeaders = appendField([]byte{0x88}, "content-type", "application/grpc")
	okTrailers  = appendField(nil, "grpc-status", "0")
)

// Reply answers Calls[i] with a message, which Reply copies.
func (b *Batch) Reply(i int, message []byte) {
	call := &b.Calls[i]
	call.start, call.dataBytes = len(b.out), messagePrefixBytes+len(message)
	b.out = appendFrame(b.out, http2.FrameHeaders, flagEndHeaders, call.streamID, grpcHeaders)
	b.out = appendFrameHeader(b.out, call.dataBytes, http2.FrameData, 0, call.streamID)
	b.out = binary.BigEndian.AppendUint32(append(b.out, 0), uint32(len(message)))
	b.out = append(b.out, message...)
	b.out = appendFrame(b.out, http2.FrameHeaders, flagEndHeaders|flagEndStream, call.streamID, okTrailers)
	call.end = len(b.out)
}

// Fail answers Calls[i] with a status of gRPC other than OK, and an error text.
func (b *Batch) Fail(i int, grpcStatus int, text string) {
	call := &b.Calls[i]
	block := appendStatus(slices.Clone(grpcHeaders), grpcStatus, text)
	call.start, call.dataBytes = len(b.out), 0
	b.out = appendHeaderFrame(b.out, flagEndHeaders|flagEndStream, call.streamID, block)
	call.end = len(b.out)
}

// appendStatus appends the fields of a status of gRPC other than OK.
func appendStatus(block []byte, grpcStatus int, text string) []byte {
	return appendField(appendField(block, "grpc-status", strconv.Itoa(grpcStatus)), "grpc-message", percentEncode(text))
}

// percentEncode returns text as gRPC sends a grpc-message.
func percentEncode(text string) string {
	return strings.ReplaceAll(url.PathEscape(text[:min(len(text), maxErrorText)]), "%20", " ")
}
