package rls

import (
	"context"
	"fmt"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/frontend/h2guard"
)

// guardedCredentials wraps each connection in an h2guard.Conn, above its TLS. When connsCtx ends, all connections are closed,
// even those in a handshake, which grpc.Server.Stop would wait for.
type guardedCredentials struct {
	credentials.TransportCredentials
	guard    *h2guard.Guard
	connsCtx context.Context
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
		return nil, nil, err
	}
	guarded := c.guard.WrapConn(c.connsCtx, conn, cut)
	return guarded, guardedAuthInfo{info, guarded}, nil
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

// refuseCompressedCall returns an error if the messages of a call are compressed, before any of them is read. If a library
// registers gzip for its own clients, grpc-go also unpacks gzip in servers: 4 KB into 4 MiB.
func refuseCompressedCall(ctx context.Context) error {
	stream := grpc.ServerTransportStreamFromContext(ctx)
	in, ok := stream.(interface{ RecvCompress() string })
	if !ok {
		return nil
	}
	name := in.RecvCompress()
	if name == "" || name == encoding.Identity {
		return nil
	}
	if err := stream.SetHeader(grpcmetadata.Pairs("grpc-accept-encoding", encoding.Identity)); err != nil {
		return fmt.Errorf("rls: refusing grpc-encoding %q: %w", name, err)
	}
	return status.Errorf(codes.Unimplemented, "grpc-encoding %q is not supported: send messages uncompressed (identity)", name)
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

// guardUnaryHandler makes handler refuse compressed calls and charge its reply to the connection.
func guardUnaryHandler(handler grpc.MethodHandler) grpc.MethodHandler {
	return func(impl any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		if err := refuseCompressedCall(ctx); err != nil {
			return nil, err
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
	ctx  context.Context
	conn *h2guard.Conn
}

const (
	// longCallMemoryBytes is about how many bytes a long call needs for its two goroutines and its records.
	longCallMemoryBytes = 32 << 10
	// maxLongCallMessageBytes is how many bytes a message to a long call may have. Messages are names
	// of services, which reflection repeats in its replies.
	maxLongCallMessageBytes = 4 << 10
)

// Context returns a context that ends with the call or the server.
func (c *longCall) Context() context.Context { return c.ctx }

// RecvMsg reads a message into m. It fails if the message is longer than maxLongCallMessageBytes.
func (c *longCall) RecvMsg(m any) error {
	if err := c.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if msg, ok := m.(proto.Message); ok && proto.Size(msg) > maxLongCallMessageBytes {
		return status.Errorf(codes.ResourceExhausted, "the message has more than %d bytes", maxLongCallMessageBytes)
	}
	return nil
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
