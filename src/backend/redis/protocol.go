package redis

import (
	"context"
	"errors"
	"hash/maphash"
	"strings"
	"time"

	"github.com/mediocregopher/radix/v4"
	"github.com/mediocregopher/radix/v4/resp"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

// protocol implements remote.Protocol for Redis.
type protocol struct {
	opener
	cfg *Config
}

// NewExchange returns the exchange of one connection.
func (p *protocol) NewExchange() remote.Exchange {
	seed := maphash.MakeSeed()
	return &exchange{pipeline: pipeline{seed: seed}, again: pipeline{seed: seed}, cfg: p.cfg}
}

// The estimated costs of hits, besides those of package remote.
const (
	scriptHitCost = 12 * time.Microsecond
	logHitCost    = 24 * time.Microsecond // of a sliding_window, which searches a log
	byteCost      = time.Nanosecond       // of a key
	scriptByte    = 10 * time.Nanosecond
)

// virtualLife is the shortest lifetime of a key in virtual time, in seconds. Virtual time may
// pass more slowly than Redis' clock.
const virtualLife = 3600

// Fill adds the hits of b to c, under the keys of remote.AppendKey.
func (p *protocol) Fill(c *remote.Call, b *backend.Batch, now int64) error {
	virtual := !b.Now.IsZero()
	if virtual {
		c.At = now / int64(time.Microsecond)
	}
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		group := backend.AnyAtomic(b.Hits[i:end])
		for ; i < end; i++ {
			h := &b.Hits[i]
			keyStart := len(c.Keys)
			c.Keys = remote.AppendKey(c.Keys, h, now, p.cfg.TagKeys)
			hit := remote.NewHit(h)
			hit.Least = int64(h.Limit.Period / time.Second)
			if virtual {
				hit.Least, hit.CountDown = max(hit.Least, virtualLife), false
			}
			hit.TTL = hit.Least + remote.JitterSeconds(p.cfg.ExpirationJitter)
			switch {
			case group:
				hit.GroupEnd = end
			case needsScript(h):
				hit.GroupEnd = i + 1
			}
			hit.Cost = cost(&hit, len(c.Keys)-keyStart)
			c.AddHit(hit)
		}
	}
	return nil
}

// needsScript reports whether a hit without a group needs takeScript, because no single command
// counts it.
func needsScript(h *backend.Hit) bool {
	return h.CountDown || h.Limit.Kind != algorithm.FixedWindow || h.Op == algorithm.Refund || h.Op == algorithm.Charge && !h.Limit.CountBlocked
}

func cost(h *remote.Hit, keyBytes int) time.Duration {
	switch {
	case h.GroupEnd == 0:
		return remote.CommandCost + time.Duration(keyBytes)*byteCost
	case h.Limit.Kind == algorithm.SlidingWindow:
		return logHitCost + time.Duration(keyBytes)*scriptByte
	}
	return scriptHitCost + time.Duration(keyBytes)*scriptByte
}

func (*protocol) CauseOf(err error) string { return causeOf(err) }
func (*protocol) IsAnswer(err error) bool  { return isAnswer(err) }

// opener opens sessions with servers that share credentials and a database.
type opener struct {
	network     string
	credentials func() (user, password string, err error)
	db          string
	// primary says that sessions with replicas are refused.
	primary bool
}

// errReplica is the error of a server that is a replica where a primary is needed.
var errReplica = errors.New("it is a replica, not a primary")

// Open connects, and sends AUTH, SELECT and ROLE as needed.
func (o *opener) Open(ctx context.Context, nd *remote.Dialer, addr string) (remote.Session, error) {
	d := radix.Dialer{NetDialer: nd}
	if o.db != "0" { // where one is anyway: proxies do not know SELECT, or share it among their clients
		d.SelectDB = o.db
	}
	var err error
	if o.credentials != nil {
		if d.AuthUser, d.AuthPass, err = o.credentials(); err != nil {
			return nil, err
		}
	}
	conn, err := d.Dial(ctx, o.network, addr)
	if err != nil {
		return nil, err
	}
	s := session{conn}
	switch {
	case o.primary:
		return s, checkPrimary(ctx, s)
	case nd.TLS != nil:
		// What a server sends on its own after the handshake of TLS 1.3 is read with the
		// answer. Else it would be taken for a reply without a command.
		return s, s.Ping(context.WithoutCancel(ctx))
	}
	return s, nil
}

// checkPrimary asks a server what it is. One that does not tell, as ACLs often forbid
// ROLE, is taken for a primary; it answers writes with READONLY otherwise.
func checkPrimary(ctx context.Context, s session) error {
	role := question{words: []string{"ROLE"}}
	if err := role.Trip(context.WithoutCancel(ctx), s); err != nil {
		return err
	}
	if len(role.reply) > 0 && role.reply[0] != "master" {
		return errReplica
	}
	return nil
}

// session is a connection to Redis.
type session struct{ radix.Conn }

// Ping sends PING.
func (s session) Ping(ctx context.Context) error { return plain(s.Do(ctx, radix.Cmd(nil, "PING"))) }

// exchangeOn writes what m marshals on s and reads the reply.
func exchangeOn(ctx context.Context, s remote.Session, m interface {
	resp.Marshaler
	resp.Unmarshaler
},
) error {
	return plain(s.(session).EncodeDecode(ctx, m, m))
}

// plain returns err without the wrapper that radix adds for its own use.
func plain(err error) error {
	if inner := errors.Unwrap(err); inner != nil && strings.HasPrefix(err.Error(), "response returned from Conn: ") {
		return inner
	}
	return err
}
