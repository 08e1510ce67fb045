package rls

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/h2"
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
		item.Request.Protocol = "grpc"
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

// h2Engine is a server of package h2. It decides the calls of ShouldRateLimit in batches, and passes all other requests
// to handlers; with tracing, these too.
type h2Engine struct {
	*h2.Server
	handlers *grpc.Server
}

// newH2Engine returns an engine for handlers, whose services are registered.
func newH2Engine(s *Service, cfg ServerConfig, handlers *grpc.Server) h2Engine {
	path := shouldRateLimit
	if cfg.StatsHandler != nil || s.cfg.StartSpan != nil {
		path = "" // Only handlers can tell them of each call.
	}
	kinds := make(map[string]h2.MethodKind)
	for name, service := range handlers.GetServiceInfo() {
		for _, m := range service.Methods {
			kinds["/"+name+"/"+m.Name] = h2.UnaryMethod
			if m.IsClientStream || m.IsServerStream {
				kinds["/"+name+"/"+m.Name] = h2.StreamMethod
			}
		}
	}
	return h2Engine{handlers: handlers, Server: h2.NewServer(h2.Config{
		Path:        path,
		Decide:      s.decideBatch,
		DecideWaits: s.cfg.StoreIsRemote,
		IsLarge:     func(message []byte) bool { return estimateProtobufMemory(message) >= minReservedBytes },
		Handler:     h2.OnlyGRPC(handlers),
		KindOf:      func(path string) h2.MethodKind { return kinds[path] },
		OpenAccount: func(evict func()) h2.Account {
			return cfg.MemoryBudget.OpenAccount(func(int64) { evict() })
		},
		ConnContext: func(ctx context.Context, a h2.Account) context.Context {
			return context.WithValue(ctx, callerConnKey{}, &callerConn{account: a.(*connlimit.MemoryAccount)})
		},
		OnPanic:    func(value any, stack []byte) { s.cfg.OnError(&PanicError{value, stack}) },
		ConnConfig: cfg.ConnConfig,
	})}
}

// handlerPatience is how long a shutdown waits for handlers whose calls are answered, which may still end spans.
const handlerPatience = time.Second

// Shutdown waits for running calls; when ctx ends, it closes their connections.
func (e h2Engine) Shutdown(ctx context.Context) {
	e.Server.Shutdown(ctx)
	ctx, cancel := context.WithTimeout(context.Background(), handlerPatience)
	defer cancel()
	endsBefore(ctx, e.handlers.Stop) // It waits for handlers because of grpc.WaitForHandlers.
}

func (e h2Engine) addTo(st *Stats) {
	st.StalledConnections = e.Stalled.Load()
	st.FloodingConnections = e.Flooding.Load()
	st.InvalidConnections = e.Invalid.Load()
}
