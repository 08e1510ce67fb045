package rls

import (
	"context"
	"fmt"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/frontend/h2"
	"ratelimit/src/frontend/h2guard"
)

// guardedCredentials wraps each connection in an h2guard.Conn, above its TLS. When connsCtx ends, all connections are
// closed, even those in a handshake, which grpc.Server.Stop would wait for.
type guardedCredentials struct {
	credentials.TransportCredentials
	guard    *h2guard.Guard
	connsCtx context.Context
	onError  func(client net.Addr, err error) // gets each *h2.WrongProtocolError.
}

// guardedAuthInfo tells handlers which connection a call came on.
type guardedAuthInfo struct {
	credentials.AuthInfo
	conn *h2guard.Conn
}

// ServerHandshake does the TLS handshake, if TLS is on, and wraps the connection.
func (c guardedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cut := func() { _ = raw.Close() } // The server learns of the close from its next read or write.
	defer context.AfterFunc(c.connsCtx, cut)()
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		if wrong := h2.WrongHandshake(err); wrong != nil {
			c.onError(raw.RemoteAddr(), wrong)
		}
		return nil, nil, err
	}
	conn = &firstReadConn{Conn: conn, onError: c.onError}
	guarded := c.guard.WrapConn(c.connsCtx, conn, cut)
	return guarded, guardedAuthInfo{info, guarded}, nil
}

// firstReadConn reports a client that does not speak HTTP/2.
type firstReadConn struct {
	net.Conn
	onError func(client net.Addr, err error) // nil after the first read.
}

// Read reads from the connection.
func (c *firstReadConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.onError != nil && n > 0 {
		if wrong := h2.WrongProtocol(p[:n]); wrong != nil {
			c.onError(c.RemoteAddr(), wrong)
		}
		c.onError = nil
	}
	return n, err
}

// Clone returns a copy, as credentials.TransportCredentials requires.
func (c guardedCredentials) Clone() credentials.TransportCredentials {
	c.TransportCredentials = c.TransportCredentials.Clone()
	return c
}

// guardedConn returns the connection that a call came on; nil for calls that came without a server.
func guardedConn(ctx context.Context) *h2guard.Conn {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(guardedAuthInfo); ok {
			return info.conn
		}
	}
	return nil
}

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
			var memory expandedMemory
			defer func() { memory.release(ctx) }()
			packed := decode
			decode = func(v any) error {
				if err := packed(v); err != nil {
					return err
				}
				return memory.hold(ctx, v)
			}
		}
		out, err := handler(impl, ctx, decode, intercept)
		if ctx.Err() != nil {
			guardedConn(ctx).ReleaseCancelledCall()
		}
		if _, encoded := out.(*reply); encoded || err != nil {
			return out, err
		}
		return encodeMessage(guardedConn(ctx), out.(proto.Message))
	}
}

// longCall is a call that lasts until its client or the server ends it, such as a health watch.
type longCall struct {
	grpc.ServerStream
	ctx       context.Context
	conn      *h2guard.Conn
	memory    *h2guard.LongCalls
	turns     *largeRequestCapacity
	gzip      *gzipDecompressor // nil if messages are not compressed.
	turn      memoryReservation // of the last message.
	heldBytes int64             // what memory holds for the last message.
}

const (
	// longCallMemoryBytes is about how many bytes a long call needs for its two goroutines, its records, and short
	// messages.
	longCallMemoryBytes = 32 << 10
	// maxLongCallMessageBytes is how many bytes a message to a long call may have, unless it is a RawMessage. Messages are
	// names of services, which reflection repeats in its replies.
	maxLongCallMessageBytes = 4 << 10
	// memoryPerRawByte is how many bytes of memory a service may need for a byte of a RawMessage.
	memoryPerRawByte = 4
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

// RecvMsg reads a message into m, and ends the use of the message before. Package h2 knows the length of a message: one
// that is too long is refused, and another one is charged and waits for its turn, before it is read. With grpc-go's
// server, that follows the read.
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
	case !c.memory.Hold(int64(memory)):
		return ErrTooMuchMemory
	}
	c.heldBytes = int64(memory)
	c.turn, err = c.turns.reserve(c.ctx, int64(memory)*memoryPerRawByte)
	return err
}

// releaseMessage ends the use of the last message.
func (c *longCall) releaseMessage() {
	c.turn.release()
	c.memory.Release(c.heldBytes)
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
