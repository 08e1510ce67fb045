package rls

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/h2"
	"ratelimit/src/frontend/h2guard"
)

// callerConn is the connection that a call came on.
type callerConn struct {
	account   *connlimit.MemoryAccount // nil if nothing is charged.
	longCalls atomic.Int64             // how many long calls the connection has.
	guard     *h2guard.Conn            // nil for connections of package h2.
}

// callerConnKey is the key of a *callerConn in the contexts of package h2.
type callerConnKey struct{}

// noConn is for calls that came without a server. Nothing is charged to it.
var noConn callerConn

// callerConnOf returns the connection that a call came on.
func callerConnOf(ctx context.Context) *callerConn {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(guardedAuthInfo); ok {
			return info.conn
		}
	}
	if c, ok := ctx.Value(callerConnKey{}).(*callerConn); ok {
		return c
	}
	return &noConn
}

// StreamMemory returns the account of the connection of a stream that ServerConfig.Register has added. ctx is the
// context of the stream. The result may be nil, and then counts nothing.
func StreamMemory(ctx context.Context) *connlimit.MemoryAccount { return callerConnOf(ctx).account }

// guardedRegistrar adds services with guarded unary methods to a server. Server.interceptStreams guards streams.
type guardedRegistrar struct{ *grpc.Server }

// RegisterService adds the service desc, which impl implements.
func (r guardedRegistrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	guarded := *desc
	guarded.Methods = slices.Clone(desc.Methods)
	for i := range guarded.Methods {
		guarded.Methods[i].Handler = guardUnaryHandler(desc.Methods[i].Handler)
	}
	r.Server.RegisterService(&guarded, impl)
}

// guardUnaryHandler makes handler charge compressed requests and its reply to the connection.
func guardUnaryHandler(handler grpc.MethodHandler) grpc.MethodHandler {
	return func(impl any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any,
		error,
	) {
		isCompressed, err := prepareCompression(ctx)
		if err != nil {
			return nil, err
		}
		if isCompressed {
			account, held := callerConnOf(ctx).account, int64(0)
			defer func() { account.ReleaseBytes(held) }()
			unpack := decode
			decode = func(v any) (err error) {
				if err = unpack(v); err == nil {
					held, err = holdExpanded(account, v)
				}
				return err
			}
		}
		out, err := handler(impl, ctx, decode, intercept)
		if ctx.Err() != nil {
			callerConnOf(ctx).guard.ReleaseCancelledCall()
		}
		if _, encoded := out.(*reply); encoded || err != nil {
			return out, err
		}
		return encodeMessage(callerConnOf(ctx), out.(proto.Message))
	}
}

// MaxLongCalls is how many long calls one connection may have at a time.
const MaxLongCalls = 8

var errTooManyLongCalls = status.Errorf(codes.ResourceExhausted,
	"too many streaming calls: %d are allowed on a connection, and fewer if all connections have many", MaxLongCalls)

// longCallBound bounds the long calls of all connections.
type longCallBound struct {
	budget         *connlimit.MemoryBudget
	count, refused atomic.Int64
}

// open charges a long call to its connection. It returns false if the connection has MaxLongCalls such calls, or if
// those of all connections hold a quarter of the budget. Otherwise the caller must call close.
func (b *longCallBound) open(c *callerConn) bool {
	ofConn, ofAll := c.longCalls.Add(1), b.count.Add(1)
	if ofConn <= MaxLongCalls && ofAll*longCallMemoryBytes <= b.budget.MaxBytes()/4 {
		c.account.HoldBytes(longCallMemoryBytes)
		return true
	}
	c.longCalls.Add(-1)
	b.count.Add(-1)
	b.refused.Add(1)
	return false
}

func (b *longCallBound) close(c *callerConn) {
	c.longCalls.Add(-1)
	b.count.Add(-1)
	c.account.ReleaseBytes(longCallMemoryBytes)
}

// longCall is a call that lasts until its client or the server ends it, such as a health watch.
type longCall struct {
	grpc.ServerStream
	ctx       context.Context
	conn      *callerConn
	turns     *largeRequestCapacity
	gzip      *gzipDecompressor // nil if messages are not compressed.
	turn      memoryReservation // of the last message.
	heldBytes int64             // what conn.account holds for the last message.
}

const (
	longCallMemoryBytes = 32 << 10 // about what a long call needs for two goroutines, records, and short messages.
	// maxLongCallMessageBytes bounds a message that is no RawMessage: a name of a service, which reflection repeats.
	maxLongCallMessageBytes = 4 << 10
	memoryPerRawByte        = 4 // how many bytes of memory a service may need for a byte of a RawMessage.
)

// MessageTooLongError is the error of RecvMsg for a message of Bytes where MaxBytes are allowed.
type MessageTooLongError struct{ Bytes, MaxBytes int }

func (e *MessageTooLongError) Error() string {
	return fmt.Sprintf("the message has %d bytes, at most %d are allowed", e.Bytes, e.MaxBytes)
}

// GRPCStatus returns what callers get.
func (e *MessageTooLongError) GRPCStatus() *status.Status {
	return status.New(codes.ResourceExhausted, e.Error())
}

// ErrTooMuchMemory is the error of a call whose connection had to be closed for its memory.
var ErrTooMuchMemory = status.Error(codes.ResourceExhausted,
	"all callers together hold too much memory, and this connection holds the most (MAX_BUFFERED_BYTES)")

// Context returns a context that ends with the call or the server.
func (c *longCall) Context() context.Context { return c.ctx }

// RecvMsg reads a message into m, and ends the use of the message before. A message is charged and waits for its turn,
// or is refused as too long, before it is read; with grpc-go's engine, that follows the read.
func (c *longCall) RecvMsg(m any) error {
	c.releaseMessage()
	raw, isRaw := m.(*RawMessage)
	maxBytes := maxLongCallMessageBytes
	if isRaw {
		raw.release()
		maxBytes = raw.MaxBytes
	}
	if length := h2.AwaitMessage(c.ctx, maxBytes); length > 0 {
		memory := length
		if c.gzip != nil { // The unpacked message is copied.
			memory = 2 * c.gzip.maxExpanded(length)
		}
		if err := c.admit(length, maxBytes, memory); err != nil {
			return err
		}
	}
	h2.AcceptMessage(c.ctx)
	if err := c.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	length := 0
	if isRaw {
		length = raw.length
	} else if msg, ok := m.(proto.Message); ok {
		length = proto.Size(msg)
	}
	return c.admit(length, maxBytes, length)
}

// admit charges memory for a message, and waits for its turn, unless it has done that already.
func (c *longCall) admit(length, maxBytes, memory int) (err error) {
	switch {
	case length > maxBytes:
		return &MessageTooLongError{length, maxBytes}
	case c.heldBytes > 0 || memory <= maxLongCallMessageBytes:
		return nil
	case !c.conn.account.HoldBytes(int64(memory)):
		return ErrTooMuchMemory
	}
	c.heldBytes = int64(memory)
	c.turn, err = c.turns.reserve(c.ctx, int64(memory)*memoryPerRawByte)
	return err
}

// releaseMessage ends the use of the last message.
func (c *longCall) releaseMessage() {
	c.turn.release()
	c.conn.account.ReleaseBytes(c.heldBytes)
	c.heldBytes = 0
}

// SendMsg queues the message m, and charges it to the connection until it is written.
func (c *longCall) SendMsg(m any) error {
	if raw, ok := m.(*RawMessage); ok {
		out := newReply(len(raw.Bytes))
		out.encodedMessage = append(out.encodedMessage[:0], raw.Bytes...)
		out.chargeMemory(c.conn)
		return c.ServerStream.SendMsg(out)
	}
	out, err := encodeMessage(c.conn, m.(proto.Message))
	if err != nil {
		return err
	}
	return c.ServerStream.SendMsg(out)
}
