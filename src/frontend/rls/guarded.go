package rls

import (
	"context"
	"fmt"
	"net"

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

// guardedCredentials puts a guard around each connection, above its TLS.
type guardedCredentials struct {
	credentials.TransportCredentials
	guard *h2guard.Guard
}

// guardedInfo tells the handler of a call on which connection the call came.
type guardedInfo struct {
	credentials.AuthInfo
	conn *h2guard.Conn
}

// ServerHandshake does the TLS handshake, if TLS is on, and puts the guard on top.
func (c guardedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	guarded := c.guard.Wrap(conn, func() { _ = raw.Close() }) // its reads and writes fail, which is the message
	return guarded, guardedInfo{info, guarded}, nil
}

// Clone returns a copy, as credentials.TransportCredentials requires.
func (c guardedCredentials) Clone() credentials.TransportCredentials {
	return guardedCredentials{c.TransportCredentials.Clone(), c.guard}
}

// guarded returns the connection that a call came on; nil outside of a server.
func guarded(ctx context.Context) *h2guard.Conn {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(guardedInfo)
	if !ok {
		return nil
	}
	return info.conn
}

// refuseCompressed returns an error for a call whose messages are compressed, before
// any of them is read. Libraries register gzip with grpc-go for their own clients,
// and its servers then unpack it: 4 KB into 4 MiB.
func refuseCompressed(ctx context.Context) error {
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

// registrar adds services whose calls are refused if they are compressed, and whose
// replies are charged to their connection. Streams are left to Server.stream.
type registrar struct{ *grpc.Server }

// RegisterService adds a service.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	guarded := *desc
	guarded.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		guarded.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: guardUnary(m.Handler)}
	}
	r.Server.RegisterService(&guarded, impl)
}

func guardUnary(handler grpc.MethodHandler) grpc.MethodHandler {
	return func(impl any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		if err := refuseCompressed(ctx); err != nil {
			return nil, err
		}
		out, err := handler(impl, ctx, decode, intercept)
		if ctx.Err() != nil {
			guarded(ctx).Cancelled()
		}
		if _, ready := out.(*reply); ready || err != nil {
			return out, err
		}
		return encodeReply(guarded(ctx), out.(proto.Message))
	}
}

// longCall is a call that lasts until its client ends it: a health watch or
// reflection. Its context ends with the server, too.
type longCall struct {
	grpc.ServerStream
	ctx  context.Context
	conn *h2guard.Conn
}

const (
	// longBytes is about what a long call takes: two goroutines, and the records of
	// its service.
	longBytes = 32 << 10
	// longMessage bounds the messages of its client, which are names of services.
	// Reflection repeats them in its replies.
	longMessage = 4 << 10
)

// Context ends with the call or the server.
func (c *longCall) Context() context.Context { return c.ctx }

// RecvMsg reads a message, which must not be longer than longMessage.
func (c *longCall) RecvMsg(m any) error {
	if err := c.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if msg, ok := m.(proto.Message); ok && proto.Size(msg) > longMessage {
		return status.Errorf(codes.ResourceExhausted, "the message has more than %d bytes", longMessage)
	}
	return nil
}

// SendMsg queues a message, which is charged to the connection until it is written.
func (c *longCall) SendMsg(m any) error {
	out, err := encodeReply(c.conn, m.(proto.Message))
	if err != nil {
		return err
	}
	return c.ServerStream.SendMsg(out)
}

// closingListener closes its connections when ctx ends, also those in the middle of a
// handshake: grpc-go waits for them even when it is told to stop at once.
type closingListener struct {
	net.Listener
	ctx context.Context
}

// closingConn is a connection of a closingListener.
type closingConn struct {
	net.Conn
	forget func() bool
}

// Accept waits for the next connection.
func (l closingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return closingConn{conn, context.AfterFunc(l.ctx, func() { _ = conn.Close() })}, nil // its reads and writes fail
}

// Close closes the connection.
func (c closingConn) Close() error {
	c.forget()
	return c.Conn.Close()
}
