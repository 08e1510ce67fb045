package xdsrules

import (
	"context"
	"sync"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
)

// tap is a connection for go-control-plane's client, which opens one stream on
// it and gets a newest.
type tap struct {
	grpc.ClientConnInterface
	cancel context.CancelCauseFunc // ends the stream
	stream *newest                 // nil before there is one
}

// NewStream starts a goroutine, which ends with the stream.
func (t *tap) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	inner, err := t.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, err
	}
	t.stream = &newest{
		ClientStream: inner,
		cancel:       t.cancel,
		arrived:      make(chan struct{}, 1),
		ended:        make(chan struct{}),
	}
	go t.stream.pump()
	return t.stream, nil
}

// newest is a stream that forgets all responses but the newest: a server may
// send faster than rules can be compiled, and what is old by then is of no use
// to anybody. The protocol allows it: a response that was never acknowledged is
// stale once there is a newer one.
type newest struct {
	grpc.ClientStream
	cancel  context.CancelCauseFunc
	arrived chan struct{} // holds a value if something arrived since it was last looked
	ended   chan struct{} // closed once err is set
	err     error         // why the stream ended
	// shown is what the client was last given; only the Watcher's goroutine
	// looks at it.
	shown *discovery.DiscoveryResponse

	mu     sync.Mutex
	latest *discovery.DiscoveryResponse // nil: none that was not shown
}

// pump takes what the server sends, as it comes.
func (s *newest) pump() {
	defer close(s.ended)
	for {
		r := new(discovery.DiscoveryResponse)
		if s.err = s.ClientStream.RecvMsg(r); s.err != nil {
			return
		}
		s.mu.Lock()
		s.latest = r
		s.mu.Unlock()
		s.signal()
	}
}

func (s *newest) signal() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// RecvMsg fills m with the newest response that was not shown yet, and else
// waits for the end.
func (s *newest) RecvMsg(m any) error {
	s.mu.Lock()
	r := s.latest
	s.latest = nil
	s.mu.Unlock()
	if r == nil {
		<-s.ended
		return s.err
	}
	s.shown = r
	to := m.(*discovery.DiscoveryResponse)
	to.VersionInfo, to.Nonce, to.TypeUrl, to.Resources = r.GetVersionInfo(), r.GetNonce(), r.GetTypeUrl(), r.GetResources()
	return nil
}

// SendMsg gives a server that does not read some time, and then the stream up.
// Any error ends the stream, and receiving tells why, better than the io.EOF
// that sending tells.
func (s *newest) SendMsg(m any) error {
	t := time.AfterFunc(sendTimeout, func() { s.cancel(errNotReading) })
	defer t.Stop()
	_ = s.ClientStream.SendMsg(m) // as said
	return nil
}
