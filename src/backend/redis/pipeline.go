package redis

import (
	"bufio"
	"bytes"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/remote"
)

// pipeline is a batch of commands for one connection. The next batch reuses its memory.
type pipeline struct {
	expireCache *expireCache
	commands    []command
	increments  commandPool[increment]
	keyCommands commandPool[keyCommand]
	scripts     commandPool[script]
	// lastIncrementByHash has the last increment of a key at hash % incrementTableSize. Of keys with the
	// same slot, only the last one is there, so hits that alternate on them are not added up.
	lastIncrementByHash [incrementTableSize]*increment
	addends             []addend
	// scriptKeyHashes has the hashes of the keys of the first scripts, scriptKeyCount in number. keyFollowsScript says
	// that a command comes behind a script with the same key, or that there are more keys than scriptKeyHashes holds.
	scriptKeyHashes  [16]uint64
	scriptKeyCount   int
	keyFollowsScript bool
	hitCount         int // the number of hits in the commands
	commandBytes     []byte
}

const incrementTableSize = 1 << 10

// maxKeptBufferBytes is the largest buffer, in bytes, that is kept for the next batch.
const maxKeptBufferBytes = 1 << 20

// Reset empties the pipeline.
func (p *pipeline) Reset() {
	clear(p.commands)
	clear(p.addends)
	for _, cmd := range p.increments.usedItems() { // Few of the slots are in use, and a batch may have a single hit.
		p.lastIncrementByHash[cmd.keyHash%incrementTableSize] = nil
	}
	p.commands, p.addends, p.hitCount = p.commands[:0], p.addends[:0], 0
	p.scriptKeyCount, p.keyFollowsScript = 0, false
	p.increments.reset()
	p.keyCommands.reset()
	p.scripts.reset()
}

// AddHits adds the hits of c from begin to end. It reports whether they need one more command.
func (p *pipeline) AddHits(c *remote.Call, begin, end int) bool {
	p.hitCount += end - begin
	h, before := &c.Hits[begin], len(p.commands)
	switch {
	case h.Delete:
		p.expireCache.forgetKey(p.addKeyCommand(c, begin)) // The next hit creates the key again.
	case h.GroupEnd > 0:
		for i := begin; i < end; i++ {
			p.closeIncrement(c.Key(i))
		}
		for i := begin; i < end; i++ {
			p.addScriptKey(p.expireCache.hashOfKey(c.Key(i)))
		}
		s := p.scripts.nextItem()
		s.sendAsking, s.call, s.firstHit, s.endHit = c.SendAsking, c, begin, end
		p.commands = append(p.commands, s)
	case h.Op == algorithm.Look:
		p.addKeyCommand(c, begin)
	default:
		p.addIncrement(c, begin)
	}
	return len(p.commands) > before
}

// addKeyCommand adds the GET or DEL of hit i of c. It returns the hash of its key.
func (p *pipeline) addKeyCommand(c *remote.Call, i int) (keyHash uint64) {
	keyHash = p.closeIncrement(c.Key(i))
	k := p.keyCommands.nextItem()
	k.sendAsking, k.call, k.hitIndex, k.deletes = c.SendAsking, c, i, c.Hits[i].Delete
	p.commands = append(p.commands, k)
	return keyHash
}

// includeScriptText sends the first script with its text if there are several commands, unless the server is known to
// have the script, and reports whether it does. A script that the server did not know would be sent again after the
// commands behind it, but hits of one call on one key must keep their order, even if someone has just removed all
// scripts from the server.
func (p *pipeline) includeScriptText(isKnown bool) bool {
	if p.scripts.usedCount == 0 || len(p.commands) == 1 || isKnown && !p.keyFollowsScript {
		return false
	}
	p.scripts.items[0].withText = true
	return true
}

// addScriptKey notes that a script has a key with that hash.
func (p *pipeline) addScriptKey(keyHash uint64) {
	if p.scriptKeyCount == len(p.scriptKeyHashes) {
		p.keyFollowsScript = true
		return
	}
	p.scriptKeyHashes[p.scriptKeyCount] = keyHash
	p.scriptKeyCount++
}

// noteKey notes that a command has a key with that hash.
func (p *pipeline) noteKey(keyHash uint64) {
	if p.scriptKeyCount > 0 && !p.keyFollowsScript {
		p.keyFollowsScript = slices.Contains(p.scriptKeyHashes[:p.scriptKeyCount], keyHash)
	}
}

// closeIncrement makes later hits on key start a new increment, because another command
// between the two must see only the earlier hits. It returns the hash of key.
func (p *pipeline) closeIncrement(key []byte) (keyHash uint64) {
	keyHash = p.expireCache.hashOfKey(key)
	p.noteKey(keyHash)
	if c := p.lastIncrementByHash[keyHash%incrementTableSize]; c != nil && bytes.Equal(c.key, key) {
		c.closedToHits = true
	}
	return keyHash
}

// addIncrement adds hit i of c to the last increment of its key, or to a new one.
func (p *pipeline) addIncrement(c *remote.Call, i int) {
	h, key := &c.Hits[i], c.Key(i)
	keyHash := p.expireCache.hashOfKey(key)
	p.noteKey(keyHash)
	cmd := p.lastIncrementByHash[keyHash%incrementTableSize]
	if cmd == nil || cmd.closedToHits || cmd.sumOfAmounts+h.Amount > maxIncrementSum || !bytes.Equal(cmd.key, key) {
		cmd = p.increments.nextItem()
		cmd.pipeline, cmd.key, cmd.keyHash, cmd.ttlSeconds = p, key, keyHash, h.TTL
		cmd.firstAddend, cmd.lastAddend = -1, -1
		p.commands = append(p.commands, cmd)
		p.lastIncrementByHash[keyHash%incrementTableSize] = cmd
	}
	if h.MinTTL > cmd.minTTL {
		cmd.minTTL = h.MinTTL
		if p.expireCache.needsExpire(keyHash, h.MinTTL, h.TTL) {
			cmd.withExpire, cmd.ttlSeconds = true, max(cmd.ttlSeconds, h.TTL)
		}
	}
	cmd.sumOfAmounts += h.Amount
	cmd.sendAsking = cmd.sendAsking || c.SendAsking
	p.addends = append(p.addends, addend{c, i, -1})
	at := int32(len(p.addends) - 1)
	if cmd.firstAddend < 0 {
		cmd.firstAddend = at
	} else {
		p.addends[cmd.lastAddend].nextAddend = at
	}
	cmd.lastAddend = at
}

// PING ends each batch. No other command has the reply PONG, so a PONG at the right place
// shows that the other replies belong to their commands.
const (
	pingCommand = "*1\r\n$4\r\nPING\r\n"
	pongReply   = "+PONG"
)

// roundTrip writes the batch with one Write and reads the replies.
func (p *pipeline) roundTrip(c *remote.Conn) error {
	if cap(p.commandBytes) > maxKeptBufferBytes {
		p.commandBytes = nil
	}
	p.commandBytes = p.commandBytes[:0]
	for _, c := range p.commands {
		if c.replyState().sendAsking {
			p.commandBytes = append(p.commandBytes, askingCommand...)
		}
		p.commandBytes = c.appendTo(p.commandBytes)
	}
	p.commandBytes = append(p.commandBytes, pingCommand...)
	if _, err := c.Write(p.commandBytes); err != nil {
		return err
	}
	return p.readReplies(c.Replies)
}

// readReplies reads the replies of the batch. If a reply is missing, unrequested or of a type that its command never
// has, no reply of the batch counts, because each may belong to another command.
func (p *pipeline) readReplies(br *bufio.Reader) error {
	err := p.readCommandReplies(br)
	if err == nil {
		err = p.readPong(br)
	}
	if err != nil {
		for _, c := range p.commands {
			r := c.replyState()
			r.isAnswered, r.errorReply = false, nil
		}
	}
	return err
}

// readCommandReplies reads the replies to the commands. It returns no error replies, because
// the link would then close the connection.
func (p *pipeline) readCommandReplies(br *bufio.Reader) error {
	for _, c := range p.commands {
		r := c.replyState()
		if err := r.readAsking(br); err != nil {
			return err
		}
		err := c.readReply(br)
		if err != nil && !isErrorReply(err) {
			return err
		}
		r.errorReply, r.isAnswered = err, true
	}
	return nil
}

// readPong reads the last reply. It may be an error if all replies are errors, as those of a server that loads its
// data.
func (p *pipeline) readPong(br *bufio.Reader) error {
	line, err := readLine(br)
	switch {
	case err != nil:
		return err
	case br.Buffered() > 0:
		return errUnrequestedReply
	case string(line) == pongReply:
		return nil
	case line[0] != '-', slices.ContainsFunc(p.commands,
		func(c command) bool { return c.replyState().errorReply == nil }):
		return errUnrequestedReply
	}
	return nil
}
