package overrides

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	//go:embed commit.lua
	commitScript string
	//go:embed read.lua
	readScript string
)

// historyScript reads the history. Its first key is that of the other scripts, so that proxies send all of them to one
// server.
const historyScript = "return redis.call('LRANGE', KEYS[2], 0, ARGV[1])"

// Commander sends a command to the Redis that has the key, and returns the reply: a string, an int64, nil, or a list of
// these. A reply that is an error is returned as the error.
type Commander func(ctx context.Context, key string, words ...string) (any, error)

// SharedStore keeps the overrides in Redis, under keys that are on one server of a cluster.
type SharedStore struct {
	command Commander
	keys    [6]string // state, overrides, versions, removed, ends, history
}

// NewSharedStore returns a store whose keys begin with keyPrefix.
func NewSharedStore(command Commander, keyPrefix string) *SharedStore {
	s := &SharedStore{command: command}
	for i, name := range []string{"state", "all", "versions", "removed", "ends", "history"} {
		s.keys[i] = keyPrefix + "{ratelimit_overrides}_" + name
	}
	return s
}

// Bounds and steps of SharedStore.
const (
	readPause = 400 * time.Millisecond
	maxRead   = 1000 // the most overrides in one reply
	// maxVersionStep makes it unlikely that two histories of a store, which lost some changes, have the same versions.
	maxVersionStep = 1000
)

const tooMany = "too many"

// Commit implements Store.
func (s *SharedStore) Commit(ctx context.Context, edits []Edit, limits Limits) ([]Result, uint64, error) {
	words := []string{"EVAL", commitScript, strconv.Itoa(len(s.keys))}
	words = append(words, s.keys[:]...)
	words = append(words, strconv.Itoa(1+rand.IntN(maxVersionStep)), strconv.FormatInt(limits.Now.UnixMilli(), 10),
		strconv.Itoa(limits.MaxKept), strconv.Itoa(MaxHistory), strconv.FormatUint(SumModulus, 10),
		strconv.FormatUint(1+rand.Uint64N(SumModulus-1), 10), strconv.FormatUint(limits.Known, 10))
	for i := range edits {
		e := &edits[i]
		record := Record{At: limits.Now.UTC(), Action: ActionSet, Override: e.Override, By: e.By}
		action, end := ActionSet, int64(0)
		switch {
		case e.Remove:
			action, record.Action = ActionUnset, ActionUnset
		case e.OnlyAbsent:
			action = "restore"
		}
		if !e.Until.IsZero() {
			end = e.Until.UnixMilli()
		}
		text := ""
		if !e.OnlyAbsent {
			data, err := json.Marshal(record)
			if err != nil {
				return nil, 0, err
			}
			text = string(data)
		}
		words = append(words, action, e.ID().text(), encodeOverride(&e.Override), strconv.FormatInt(end, 10), text,
			strconv.FormatUint(e.Known, 10))
	}
	reply, err := s.command(ctx, s.keys[0], words...)
	if err != nil {
		return nil, 0, err
	}
	if reply == tooMany {
		return nil, 0, fmt.Errorf("%w; at most %d are kept", ErrTooMany, limits.MaxKept)
	}
	return readResults(reply, len(edits))
}

var errReply = errors.New("redis: a reply about overrides is not as it should be; does another program use the keys?")

func readResults(reply any, edits int) (results []Result, epoch uint64, err error) {
	list, isList := reply.([]any)
	if !isList || len(list) != 1+2*edits {
		return nil, 0, errReply
	}
	epoch, ok := replyNumber(list[0])
	if list = list[1:]; !ok {
		return nil, 0, errReply
	}
	results = make([]Result, edits)
	for i := range results {
		old, isText := list[2*i].(string)
		version, ok := replyNumber(list[2*i+1])
		if !isText || !ok {
			return nil, 0, errReply
		}
		results[i].Version = version
		if results[i].Before, err = decodeOverride(old); err != nil {
			return nil, 0, err
		}
	}
	return results, epoch, nil
}

func replyNumber(v any) (n uint64, ok bool) {
	switch v := v.(type) {
	case int64:
		return uint64(max(v, 0)), v >= 0
	case string:
		n, err := strconv.ParseUint(v, 10, 64)
		return n, err == nil
	}
	return 0, false
}

// Read implements Store. A whole Delta is never in parts.
func (s *SharedStore) Read(ctx context.Context, since uint64) (*Delta, error) {
	d, err := s.read(ctx, since)
	for err == nil && d.Whole && d.More {
		var next *Delta
		if next, err = s.read(ctx, d.Position); err == nil {
			d.add(next)
		}
	}
	return d, err
}

// add adds the changes of next, which come after those of d, to d.
func (d *Delta) add(next *Delta) {
	removed := make(map[ID]bool, len(next.Removed))
	for _, id := range next.Removed {
		removed[id] = true
	}
	d.Set = append(slices.DeleteFunc(d.Set, func(v Versioned) bool { return removed[v.ID()] }), next.Set...)
	if next.Whole { // The store has lost its overrides meanwhile.
		d.Set = next.Set
	}
	d.Position, d.More, d.Count, d.Sum, d.Epoch = next.Position, next.More, next.Count, next.Sum, next.Epoch
}

// read reads one part.
func (s *SharedStore) read(ctx context.Context, since uint64) (*Delta, error) {
	words := append([]string{"EVAL", readScript, "4"}, s.keys[:4]...)
	words = append(words, strconv.FormatUint(since, 10), strconv.Itoa(maxRead))
	reply, err := s.command(ctx, s.keys[0], words...)
	if err != nil {
		return nil, err
	}
	return readDelta(reply)
}

func readDelta(reply any) (*Delta, error) {
	list, isList := reply.([]any)
	if !isList || len(list) != 8 {
		return nil, errReply
	}
	var numbers [6]uint64
	for i := range numbers {
		n, ok := replyNumber(list[i])
		if !ok {
			return nil, errReply
		}
		numbers[i] = n
	}
	d := &Delta{
		Whole: numbers[0] == 1, Position: numbers[1], More: numbers[2] == 1, Count: int(numbers[3]), Sum: numbers[4],
		Epoch: numbers[5],
	}
	set, _ := list[6].([]any)
	for i := 0; i+1 < len(set); i += 2 {
		text, isText := set[i].(string)
		version, ok := replyNumber(set[i+1])
		if !isText || !ok {
			return nil, errReply
		}
		o, err := decodeOverride(text)
		if err != nil || o == nil {
			return nil, errReply
		}
		d.Set = append(d.Set, Versioned{*o, version})
	}
	removed, _ := list[7].([]any)
	for _, v := range removed {
		text, _ := v.(string)
		parts := strings.Split(text, idSeparator)
		if len(parts) != 3 {
			return nil, errReply
		}
		d.Removed = append(d.Removed, ID{parts[0], parts[1], parts[2]})
	}
	return d, nil
}

// History implements Store.
func (s *SharedStore) History(ctx context.Context) ([]Record, error) {
	reply, err := s.command(ctx, s.keys[0], "EVAL", historyScript, "2", s.keys[0], s.keys[len(s.keys)-1],
		strconv.Itoa(MaxHistory-1))
	if err != nil {
		return nil, err
	}
	list, _ := reply.([]any)
	records := make([]Record, 0, len(list))
	for _, v := range list {
		text, _ := v.(string)
		record, old, _ := strings.Cut(text, "\n")
		var r Record
		if err := json.Unmarshal([]byte(record), &r); err != nil {
			return nil, errReply
		}
		if r.Before, err = decodeOverride(old); err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// Pause implements Store.
func (*SharedStore) Pause() time.Duration { return readPause }
