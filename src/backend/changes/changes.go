// Package changes tells all replicas that share a store of changes that one of them makes: those that operators make to
// counters, after which each replica drops what it remembers of them, or others, each kind with a Feed of its own.
//
// A counter in the store is the version. It is the number of changes. For each change there is a text, under a key with
// its version, for TextTTL. Each replica reads the version after every Pause, and the texts only after it has grown. So
// a change reaches a replica half a second after the store has it, or sooner with a shorter Pause, and requests pay
// nothing. While the store does not answer, replicas know the last version, and learn of later changes when it answers
// again.
package changes

import (
	"cmp"
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

// Feed publishes changes, and tells this process of those that other replicas publish. All fields without a default are
// required. Feeds of one Name and KeyPrefix in a store are one feed.
type Feed struct {
	Store Store
	// KeyPrefix starts all keys.
	KeyPrefix string
	// Name tells the keys of this feed from those of other feeds. It is a noun without digits and underscores, of which no
	// other feed has the plural: the version of "change" has the key "ratelimit_changes_", and its first text
	// "ratelimit_change_1". Defaults to "change".
	Name string
	// Needed reports whether this process remembers anything of what changes. While it is false, Run reads no version.
	Needed func() bool
	// OnChange is called with the texts of new changes, oldest first. If all is false, there may be others, whose texts
	// are unknown. So it is after the first read of a version above 0, because there may have been changes since the
	// process started. While a text is missing, it is called with those before it, which may be none.
	OnChange func(texts [][]byte, all bool)
	// Pause returns the time until the next read of the version. It is called after each read, and while Needed is false.
	// Nil stands for PollPause.
	Pause func() time.Duration
	// TextTTL is how long the text of a change stays in the store. A replica that does not reach the store for longer
	// does not learn what was changed. Defaults to 10 minutes.
	TextTTL time.Duration
	// TextWait is how long Run waits for a text that is not in the store yet, since the version grows before the text is
	// stored. Later texts wait, too. Defaults to 4 times PollPause.
	TextWait time.Duration
	// MaxTexts is the most texts that are read at a time, one after the other. Of more changes, a replica only learns that
	// there were some. Defaults to 32.
	MaxTexts int
}

// PollPause is the Pause of a feed that has none.
const PollPause = 400 * time.Millisecond

// The defaults of the bounds of a Feed.
const (
	defaultName     = "change"
	defaultTextTTL  = 10 * time.Minute
	defaultTextWait = 4 * PollPause
	defaultMaxTexts = 32
)

// versionLimit is the limit of the counter that is the version. Its count restarts each year, which looks like changes
// without texts.
var versionLimit = algorithm.Limit{Max: 1 << 48, Period: 365 * 24 * time.Hour, CountBlocked: true}

// keyStart returns the start of the keys of this feed.
func (f *Feed) keyStart() string { return f.KeyPrefix + "ratelimit_" + cmp.Or(f.Name, defaultName) }

func (f *Feed) textKey(version uint64) string {
	return f.keyStart() + "_" + strconv.FormatUint(version, 10)
}

func (f *Feed) pause() time.Duration {
	if f.Pause == nil {
		return PollPause
	}
	return f.Pause()
}

// Publish tells all replicas, this one included, of a change that the store already has. text describes it.
func (f *Feed) Publish(ctx context.Context, text []byte) error {
	version, err := f.version(ctx, algorithm.Force, 1)
	if err == nil {
		err = f.Store.SetText(ctx, f.textKey(version), text, cmp.Or(f.TextTTL, defaultTextTTL))
	}
	if err != nil {
		return fmt.Errorf("changes: other replicas could not be told: %w", err)
	}
	return nil
}

// version applies op to the version, and returns it.
func (f *Feed) version(ctx context.Context, op algorithm.Op, amount uint64) (uint64, error) {
	v, err := backend.TakeHit(ctx, f.Store, backend.Hit{
		Key: []byte(f.keyStart() + "s_"), Limit: &versionLimit, Op: op, Amount: amount,
	})
	return v.After, err
}

// reader is what Run knows of the changes.
type reader struct {
	hasVersion   bool
	version      uint64    // the last version of which OnChange was told
	missingSince time.Time // when the text of the next version was first missing; zero if it was not looked for
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
		case <-time.After(f.pause()):
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
	// The store has lost the version, or there are many changes.
	case now < r.version || now-r.version > uint64(cmp.Or(f.MaxTexts, defaultMaxTexts)):
		*r = reader{hasVersion: true, version: now}
		f.OnChange(nil, false)
		return
	}
	var texts [][]byte
	all := true
	for r.version < now {
		text, err := f.Store.Text(ctx, f.textKey(r.version+1))
		if text == nil || err != nil {
			if r.missingSince.IsZero() {
				r.missingSince = time.Now()
			}
			if time.Since(r.missingSince) < cmp.Or(f.TextWait, defaultTextWait) {
				break // It may be there next time.
			}
			all = false
		} else {
			texts = append(texts, text)
		}
		r.version, r.missingSince = r.version+1, time.Time{}
	}
	f.OnChange(texts, all)
}
