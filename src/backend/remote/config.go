package remote

import (
	"context"
	"crypto/tls"
	"time"
)

// Config holds the settings that Redis and Memcached share.
type Config struct {
	// TLS returns the configuration of each new connection, so that certificates
	// may change. Nil means no TLS.
	TLS func() (*tls.Config, error)
	// Connections is the number of connections to each server. Defaults to 2: one
	// batch is under way while the next one fills. More make smaller batches.
	Connections int
	// Timeout bounds every call, and how long a connection may stand still.
	// Defaults to 50ms.
	Timeout time.Duration
	// DialTimeout bounds the making of a connection, with TLS and everything that is
	// sent before the first command. Defaults to SetupTimeout(Timeout).
	DialTimeout time.Duration
	// PipelineWindow is the pause before each batch. Defaults to 0: batches form by
	// themselves while others are under way.
	PipelineWindow time.Duration
	// ExpirationJitter is added to the time to live of each key: a random number of
	// whole seconds below it. 0: none.
	ExpirationJitter time.Duration
	// TagKeys keeps every window under a key that names its length and has a hash
	// tag. Without it the windows of envoyproxy/ratelimit have its keys, and
	// windows of two lengths that start together share a counter.
	TagKeys bool
	// MaxWaiting bounds the calls that wait at a time, and the calls in the queue of
	// one connection; more are refused at once. Defaults to 20,000. The keys of all
	// of them have MaxBytes at most.
	MaxWaiting int64
	// BreakerFailures is the number of attempts in a row without an answer after
	// which a server is only probed. Defaults to 5. Below 0: it is always asked.
	BreakerFailures int
	// OnBreaker, if set, hears that a breaker opened, and why, or that it closed. A
	// nil why means that the server answered. It must not block.
	OnBreaker func(addr string, open bool, why error)
	// OnSlow, if set, hears of a server that answers later than the Timeout: when
	// that is found, and every minute while it is so. It must not block.
	OnSlow func(*SlowError)
	// OnBatch, if set, hears how many hits were sent together and how long the
	// answer took: for each batch to Redis, and each command to Memcached. It must
	// not block.
	OnBatch func(hits int, took time.Duration)
	// Span, if set, hears of each call with the number of its hits. The function
	// that it returns hears of the end, with an error of one of the hits. Calls
	// that are refused because too many wait have no span.
	Span func(ctx context.Context, hits int) (end func(error))
}

func (c *Config) setDefaults() {
	setDefault(&c.Connections, 2)
	setDefault(&c.Timeout, 50*time.Millisecond)
	setDefault(&c.DialTimeout, SetupTimeout(c.Timeout))
	setDefault(&c.MaxWaiting, 20_000)
	if c.BreakerFailures == 0 {
		c.BreakerFailures = 5
	}
}

func setDefault[T int | int64 | time.Duration](v *T, fallback T) {
	if *v <= 0 {
		*v = fallback
	}
}
