package remote

import (
	"context"
	"errors"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// greedyProtocol waits for a greeting of the server.
type greedyProtocol struct{ fakeProtocol }

func (greedyProtocol) Open(_ context.Context, c *Conn) error {
	_, err := c.Replies.ReadByte()
	return err
}

// The end of the context ends the opening of a connection, whatever the server does.
func TestOpeningEndsWithContext(t *testing.T) {
	listener := harness.Listen(t)
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if c, err := listener.Accept(); err == nil {
			cancel()
			<-t.Context().Done()
			_ = c.Close()
		}
	}()
	figures := new(Figures)
	l := NewLink(&Access{Opener: greedyProtocol{}, Timeout: time.Hour, DialTimeout: time.Hour, Figures: figures},
		listener.Addr().String())
	if err := l.Do(ctx, l.Ping); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if n := figures.openConnections.Load(); n != 0 || l.conn.Load() != nil {
		t.Errorf("%d connections are open", n)
	}
}
