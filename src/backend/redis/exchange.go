package redis

import (
	"bytes"
	"context"
	"time"

	"ratelimit/src/backend/remote"
)

// exchange implements remote.Exchange with a pipeline of commands.
type exchange struct {
	pipeline
	cfg *Config
	// extraCommands holds the scripts that Redis did not know, and EXPIRE for keys without a TTL.
	extraCommands pipeline
	// keysWithoutTTL has the keys that may have no time to live. They would stay in Redis for
	// ever if they were not hit again, so each gets an EXPIRE of its own.
	//
	// A batch that the network delays until after that EXPIRE can still leave a key without
	// a time to live, if Redis lost the key meanwhile.
	keysWithoutTTL map[string]*expireCommand
	// scriptConn is the last connection to whose server the script was sent. A server that starts anew has new
	// connections.
	scriptConn     *remote.Conn
	nextExpireTime time.Time // when to send EXPIRE for keysWithoutTTL
}

const (
	// maxKeysWithoutTTL bounds keysWithoutTTL. Further keys get EXPIRE with their next hit.
	maxKeysWithoutTTL = 4096
	// expireRetryPause is the time between two attempts to send EXPIRE while no batch is answered.
	expireRetryPause = 500 * time.Millisecond
	// scriptTextCost is the estimated time in which the server reads the text of a script.
	scriptTextCost = 50 * time.Microsecond
)

// HasRoom reports whether PipelineLimit lets a batch of has hits take more hits.
func (x *exchange) HasRoom(has, more int) bool {
	return x.cfg.PipelineLimit <= 0 || has+more <= x.cfg.PipelineLimit
}

func (*exchange) Close() {}

// Send sends the pipeline, and then the scripts that Redis does not know with their text.
func (x *exchange) Send(ctx context.Context, l *remote.Link) (remote.SentBatch, error) {
	sent := remote.SentBatch{Commands: len(x.commands)}
	started := time.Now()
	err := l.Perform(func(c *remote.Conn) error {
		if x.includeScriptText(c == x.scriptConn) {
			sent.ExtraCost = scriptTextCost
		}
		err := x.roundTrip(c)
		if err == nil && x.scripts.usedCount > 0 {
			x.scriptConn = c // After NOSCRIPT, too: the text follows.
		}
		return err
	})
	if err == nil && x.collectUnknownScripts() {
		err = l.Do(ctx, x.extraCommands.roundTrip)
	}
	if x.cfg.OnBatch != nil {
		x.cfg.OnBatch(x.hitCount, time.Since(started))
	}
	x.deliverResults(&sent, l.Addr, err)
	x.noteKeysWithoutTTL()
	return sent, err
}

// collectUnknownScripts fills extraCommands with the scripts that Redis does not know, to be sent
// with their text. It reports whether there are any.
func (x *exchange) collectUnknownScripts() bool {
	x.extraCommands.Reset()
	for _, s := range x.scripts.usedItems() {
		if !s.withText && s.errorReply != nil && errorReplyWord(s.errorReply) == "NOSCRIPT" {
			s.withText, s.isAnswered, s.errorReply = true, false, nil
			x.extraCommands.commands = append(x.extraCommands.commands, s)
		}
	}
	return len(x.extraCommands.commands) > 0
}

// deliverResults sets the results of all hits, and in sent what error replies say about the server at addr. Commands
// without a reply get the error failure. In a cluster, a hit that was redirected gets a remote.Redirect.
func (x *exchange) deliverResults(sent *remote.SentBatch, addr string, failure error) {
	for _, c := range x.commands {
		r := c.replyState()
		err := r.errorReply
		if !r.isAnswered {
			err = failure
		}
		if r.errorReply != nil {
			if isForeignValue(r.errorReply) && x.cfg.OnForeignValue != nil {
				x.cfg.OnForeignValue(algorithmOf(c), addr)
			}
			switch word := errorReplyWord(r.errorReply); word {
			case "READONLY", "LOADING", "MASTERDOWN", "NOAUTH":
				sent.DisconnectReason, sent.LayoutChanged = r.errorReply, true
			case "CLUSTERDOWN":
				sent.LayoutChanged = true
			case "MOVED", "ASK", "TRYAGAIN":
				if len(x.cfg.Cluster) > 0 {
					sent.LayoutChanged = sent.LayoutChanged || word == "MOVED"
					err = redirectFromReply(r.errorReply, addr)
				}
			}
		}
		c.deliverResults(err)
	}
}

// noteKeysWithoutTTL adds the keys of the pipeline that may have no time to live to keysWithoutTTL.
func (x *exchange) noteKeysWithoutTTL() {
	for _, c := range x.increments.usedItems() {
		if !c.mayLackTTL() {
			continue
		}
		if len(x.keysWithoutTTL) >= maxKeysWithoutTTL {
			x.expireCache.forgetKey(c.keyHash)
			continue
		}
		if x.keysWithoutTTL == nil {
			x.keysWithoutTTL = make(map[string]*expireCommand)
		}
		key := bytes.Clone(c.key)
		x.keysWithoutTTL[string(key)] = &expireCommand{
			commandReply: commandReply{sendAsking: c.sendAsking}, key: key,
			keyHash: c.keyHash, ttlSeconds: c.ttlSeconds,
		}
		x.nextExpireTime = time.Now().Add(expireRetryPause)
	}
}

// Upkeep sends EXPIRE for the keys without a time to live. After an error reply, such as
// MOVED, a key gets its EXPIRE with its next hit.
func (x *exchange) Upkeep(ctx context.Context, l *remote.Link, answers bool) (wait time.Duration) {
	if len(x.keysWithoutTTL) == 0 {
		return 0
	}
	if wait = time.Until(x.nextExpireTime); wait > 0 && !answers {
		return wait
	}
	x.nextExpireTime = time.Now().Add(expireRetryPause)
	x.extraCommands.Reset()
	for _, c := range x.keysWithoutTTL {
		x.extraCommands.commands = append(x.extraCommands.commands, c)
	}
	_ = l.Do(ctx, x.extraCommands.roundTrip) // After an error, the commands are not marked as answered.
	for key, c := range x.keysWithoutTTL {
		if !c.isAnswered {
			continue
		}
		x.expireCache.forgetKey(c.keyHash)
		if c.errorReply == nil && c.keyExists {
			x.expireCache.needsExpire(c.keyHash, c.ttlSeconds, c.ttlSeconds)
		}
		delete(x.keysWithoutTTL, key)
	}
	return expireRetryPause
}
