package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"time"
)

// Config holds the settings that Redis and Memcached share.
type Config struct {
	// TLS returns the configuration of each new connection, so that certificates may change. Nil means no TLS.
	TLS func() (*tls.Config, error)
	// Connections is the number of connections to each server. Defaults to 2, so that one
	// batch is under way while the next one fills. More connections make smaller batches.
	Connections int
	// Timeout bounds every call, and each Read and Write of a connection. Defaults to 50ms.
	Timeout time.Duration
	// DialTimeout bounds the opening of a connection with TLS and authentication. Defaults to
	// DefaultDialTimeout(Timeout).
	DialTimeout time.Duration
	// PipelineWindow is the pause before each batch, in which calls can join it. Defaults
	// to 0, as calls that arrive while a batch is under way form the next one anyway.
	PipelineWindow time.Duration
	// ExpirationJitter bounds the random number of whole seconds that is added to the time
	// to live of each key. Defaults to 0, which adds nothing.
	ExpirationJitter time.Duration
	// TagKeys gives all keys a hash tag and the length of the window. Without it, windows that envoyproxy/ratelimit
	// also has get its keys, and windows of different lengths that start at the same time share a counter.
	TagKeys bool
	// MaxWaitingCalls bounds the calls that wait at a time, and the calls in the queue of one
	// connection. Further calls get ErrTooManyCalls. Defaults to 20,000.
	MaxWaitingCalls int64
	// BreakerFailures is the number of attempts in a row without an answer that open the
	// breaker of a server. Defaults to 5. A negative number means that none opens.
	BreakerFailures int
	// OnBreaker, if set, is called when a breaker opens or closes. The reason is nil if it
	// closes because the server answered. It must not block.
	OnBreaker func(addr string, open bool, reason error)
	// OnSlowServer, if set, is called when a server is found that answers later than the Timeout,
	// and every minute while that lasts. It must not block.
	OnSlowServer func(*SlowError)
	// OnBatch, if set, is called after each batch of Redis and each command of Memcached,
	// with the number of its hits and the time until the answer. It must not block.
	OnBatch func(hits int, took time.Duration)
	// StartSpan, if set, is called at the start of each call with the number of its hits. It returns a function for the
	// end of the call, which gets the error of one hit, or nil. It is not called for calls that get ErrTooManyCalls.
	StartSpan func(ctx context.Context, hits int) (end func(error))
}

func (c *Config) setDefaults() {
	setDefault(&c.Connections, 2)
	setDefault(&c.Timeout, 50*time.Millisecond)
	setDefault(&c.DialTimeout, DefaultDialTimeout(c.Timeout))
	setDefault(&c.MaxWaitingCalls, 20_000)
	c.BreakerFailures = cmp.Or(c.BreakerFailures, 5)
}

func setDefault[T int | int64 | time.Duration](setting *T, byDefault T) {
	if *setting <= 0 {
		*setting = byDefault
	}
}
