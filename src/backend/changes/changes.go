// Package changes tells all replicas that share a store of changes that operators make to counters. Each replica then
// drops what it remembers of the store's counters.
//
// A counter in the store is the version. It is the number of changes. For each change there is a text, under a key with
// its version, for TextTTL. Each replica reads the version every PollPause, and the texts only after it has grown. So a
// change reaches a replica half a second after the store has it, and requests pay nothing. While the store does not
// answer, replicas know the last version, and learn of later changes when it answers again.
package changes

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Store counts the version, without a cache in front, and stores texts for all replicas. *redis.Store and
// *memcached.Store implement it.
type Store interface {
	backend.Backend
	// SetText stores a text under key for ttl.
	SetText(ctx context.Context, key string, text []byte, ttl time.Duration) error
	// Text returns the text under key, or nil if there is none.
	Text(ctx context.Context, key string) ([]byte, error)
}

// Feed publishes changes, and tells this process of those that other replicas publish. All fields but KeyPrefix are
// required.
type Feed struct {
	Store Store
	// KeyPrefix starts all keys.
	KeyPrefix string
	// Needed reports whether this process remembers anything of the store's counters. While it is false, Run reads no
	// version.
	Needed func() bool
	// OnChange is called with the texts of new changes, oldest first. If all is false, there may be others, whose texts
	// are unknown. So it is after the first read of a version above 0, because there may have been changes since the
	// process started.
	OnChange func(texts [][]byte, all bool)
}

const (
	// PollPause is the time between two reads of the version.
	PollPause = 400 * time.Millisecond
	// TextTTL is how long the text of a change stays in the store. A replica that does not reach the store for longer
	// does not learn what was changed.
	TextTTL = 10 * time.Minute
	// maxTexts is the most texts that are read at a time. Of more changes, a replica only learns that there were some.
	maxTexts = 32
	// maxMissing is how often Run looks for a text that is not in the store yet: the version grows before the text is
	// stored.
	maxMissing = 5
)

// versionLimit is the limit of the counter that is the version. Its count restarts each year, which looks like changes
// without texts.
var versionLimit = algorithm.Limit{Max: 1 << 48, Period: 365 * 24 * time.Hour, CountBlocked: true}

func (f *Feed) textKey(version uint64) string {
	return f.KeyPrefix + "ratelimit_change_" + strconv.FormatUint(version, 10)
}

// Publish tells all replicas, this one included, of a change that the store already has. text describes it.
func (f *Feed) Publish(ctx context.Context, text []byte) error {
	version, err := f.version(ctx, algorithm.Force, 1)
	if err == nil {
		err = f.Store.SetText(ctx, f.textKey(version), text, TextTTL)
	}
	if err != nil {
		return fmt.Errorf("changes: other replicas could not be told: %w", err)
	}
	return nil
}

// version applies op to the version, and returns it.
func (f *Feed) version(ctx context.Context, op algorithm.Op, amount uint64) (uint64, error) {
	v, err := backend.TakeHit(ctx, f.Store, backend.Hit{
		Key: []byte(f.KeyPrefix + "ratelimit_changes_"), Limit: &versionLimit, Op: op, Amount: amount,
	})
	return v.After, err
}

// reader is what Run knows of the changes.
type reader struct {
	hasVersion bool
	version    uint64 // the last version of which OnChange was told
	missing    int    // counts the attempts to read the text of the next version
}

// Run calls OnChange until ctx ends.
func (f *Feed) Run(ctx context.Context) error {
	var r reader
	for {
		if f.Needed() {
			f.poll(ctx, &r)
		} else {
			r = reader{}
		}
		select {
		case <-time.After(PollPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// poll reads the version and tells of new changes.
func (f *Feed) poll(ctx context.Context, r *reader) {
	now, err := f.version(ctx, algorithm.Look, 0)
	switch {
	case err != nil || r.hasVersion && now == r.version:
		return
	case !r.hasVersion:
		*r = reader{hasVersion: true, version: now}
		if now > 0 { // Some of the changes may be younger than what this process remembers.
			f.OnChange(nil, false)
		}
		return
	case now < r.version || now-r.version > maxTexts: // The store has lost the version, or there are many changes.
		*r = reader{hasVersion: true, version: now}
		f.OnChange(nil, false)
		return
	}
	var texts [][]byte
	all := true
	for r.version < now {
		text, err := f.Store.Text(ctx, f.textKey(r.version+1))
		if text == nil || err != nil {
			if r.missing++; r.missing < maxMissing {
				break // It may be there next time.
			}
			all = false
		} else {
			texts = append(texts, text)
		}
		r.version, r.missing = r.version+1, 0
	}
	f.OnChange(texts, all)
}
