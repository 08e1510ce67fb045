package rls

import (
	"context"
	"time"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/h2"
	"ratelimit/src/frontend/h2guard"
	"ratelimit/src/limiter"
)

// batchMemory is the working memory of one batch of calls. A later batch reuses it.
type batchMemory struct {
	requests limiter.Many
	requestDecoder
	reply []byte // the message of one reply.
}

const (
	// maxPooledBatchDescriptors is how many descriptors of each request a pooled batch has room for. Requests with more
	// are large.
	maxPooledBatchDescriptors = 64
	// maxPooledBatchEntries is how many entries of all requests a pooled batch has room for.
	maxPooledBatchEntries = 4096
)

// decideBatch answers the calls of a batch. They share one call of the store.
func (s *Service) decideBatch(b *h2.Batch) {
	defer func() { s.cfg.OnCalls("grpc", "ShouldRateLimit", len(b.Calls), time.Since(b.Received)) }()
	m := s.batchPool.Get().(*batchMemory) // After a panic, it is not reused.
	for i := range b.Calls {
		item := m.requests.Add()
		item.Err = m.decode(b.Calls[i].Message, &item.Request)
		item.Request.Protocol = limiter.ProtocolGRPC
	}
	m.requests.Now = s.now
	s.cfg.Limiter.CheckMany(b.Context(), &m.requests)
	for i, item := range m.requests.Items() {
		err := item.Err
		if err == nil {
			m.reply, err = s.appendAnswer(m.reply[:0], &item.Request, &item.Answer)
		}
		if err != nil {
			class := errorClassOf(s.reportError(err))
			b.Fail(i, int(class.grpcCode), class.callerText)
			continue
		}
		b.Reply(i, m.reply)
	}
	m.requests.Reset(maxPooledBatchDescriptors)
	clear(m.entries)
	m.entries = m.entries[:0]
	if cap(m.entries) <= maxPooledBatchEntries && cap(m.reply) <= maxPooledSmallReplyBytes {
		s.batchPool.Put(m)
	}
}

// newEngine returns the HTTP/2 server of srv, whose services are registered. It decides the calls of ShouldRateLimit in
// batches, and passes all other requests to srv.grpcServer; with tracing, these too.
func (srv *Server) newEngine(s *Service, cfg ServerConfig) *h2.Server {
	path := shouldRateLimit
	if cfg.StatsHandler != nil || s.cfg.StartSpan != nil {
		path = "" // Only srv.grpcServer can tell them of each call.
	}
	kinds := make(map[string]h2.MethodKind)
	for name, service := range srv.grpcServer.GetServiceInfo() {
		for _, m := range service.Methods {
			kinds["/"+name+"/"+m.Name] = h2.UnaryMethod
			if m.IsClientStream || m.IsServerStream {
				kinds["/"+name+"/"+m.Name] = h2.StreamMethod
			}
		}
	}
	return h2.NewServer(h2.Config{
		Path:        path,
		Decide:      s.decideBatch,
		DecideWaits: s.cfg.StoreIsRemote,
		IsLarge:     func(message []byte) bool { return estimateProtobufMemory(message) >= minReservedBytes },
		Handler:     h2.OnlyGRPC(srv.grpcServer),
		KindOf:      func(path string) h2.MethodKind { return kinds[path] },
		OpenAccount: func(evict func()) h2.Account {
			return cfg.MemoryBudget.OpenAccount(func(int64) { evict() })
		},
		ConnContext: func(ctx context.Context, a h2.Account) context.Context {
			return context.WithValue(ctx, longCallsKey{}, srv.guard.LongCalls(a.(*connlimit.MemoryAccount)))
		},
		OnPanic:               func(value any, stack []byte) { s.cfg.OnError(&PanicError{value, stack}) },
		OnProtocolError:       cfg.OnProtocolError,
		TLS:                   cfg.TLS,
		HandshakeTimeout:      handshakeTimeout,
		MaxMessageBytes:       cfg.MaxMessageBytes,
		MaxHeaderBytes:        maxHeaderBytes,
		MaxStreams:            cfg.MaxCallsPerConnection,
		MaxClientSilence:      cfg.MaxClientSilence,
		MinClientPingInterval: cfg.MinClientPingInterval,
		MaxConnectionAge:      cfg.MaxConnectionAge,
		MaxConnectionAgeGrace: cfg.MaxConnectionAgeGrace,
	})
}

// longCallsKey is the key of a connection's *h2guard.LongCalls in the contexts of its calls.
type longCallsKey struct{}

// StreamMemory returns what counts the memory that the streams of a connection hold. ctx is the context of a stream
// that ServerConfig.Register has added. The result may be nil, and then counts nothing.
func StreamMemory(ctx context.Context) *h2guard.LongCalls { return longCallsOf(ctx) }

// longCallsOf returns what bounds the long calls of the connection that a call came on; nil for calls that came without
// a server.
func longCallsOf(ctx context.Context) *h2guard.LongCalls {
	if l, ok := ctx.Value(longCallsKey{}).(*h2guard.LongCalls); ok {
		return l
	}
	return guardedConn(ctx).LongCalls()
}
