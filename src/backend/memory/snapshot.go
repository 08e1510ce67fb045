package memory

import (
	"cmp"
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/siphash"
)

// The stream of a snapshot has a header and records. The first byte of a record is its kind. Counters of one shard are
// neighbours, in the order of the shards. The encoding of a counter has its slot without the form, and then
//
//	inline counter  nothing
//	wide counter    the three numbers of its state
//	log counter     the length of the encoded log in 4 bytes, and the log
//	held counter    the length of the encoded algorithm.HeldState in 4 bytes, and the state
//
// A name follows the counters of its shard: the length of its entry in 2 bytes, and the entry of nameLog.
const (
	inlineRecord = 'I'
	wideRecord   = 'W'
	logRecord    = 'L'
	heldRecord   = 'H'
	nameRecord   = 'N'
	endRecord    = 'E' // the last record: the number of counters in 8 bytes.

	headerBytes     = 32 // the size of the header: the time, the grace and the key of the hash.
	slotRecordBytes = 1 + slotBytes
	wideStateBytes  = 24
)

// maxSnapshotSkew is how far a snapshot may be ahead of the clock of this process.
const maxSnapshotSkew = time.Minute

// SnapshotStats says what a snapshot has.
type SnapshotStats struct {
	SavedAt  time.Time
	Counters int64 // counts the counters that were written, or that ReadSnapshot added to the store.
	Expired  int64 // counts the counters that ReadSnapshot left out because they had expired.
	Evicted  int64 // counts the counters that ReadSnapshot left out or evicted because the store has too little room.
}

// WriteSnapshot writes all live counters to w, and the key with which the store hashes names. Hits may be decided
// meanwhile. Each of them is in the snapshot, or is not; the hits of one group may be in it in part. The lock of a
// shard is held only for a copy of its table and one of its names, of at most 56 KiB, and for copies of its sliding
// windows and holds, of 32 KiB or of one counter at a time.
//
// It needs some 250 KiB of memory, and as much as the largest counter: 16 bytes for each hit of a sliding window, and
// 32 for each hold.
func (s *Store) WriteSnapshot(w io.Writer, now time.Time) (SnapshotStats, error) {
	sw := snapshotWriter{out: newChunkWriter(w), now: now.UnixNano()}
	numbers := []uint64{uint64(sw.now), uint64(s.budget.graceNanos), s.hashKey[0], s.hashKey[1]}
	header, _ := binary.Append(nil, binary.LittleEndian, numbers) // Numbers never fail.
	sw.out.add(header)
	for i := range s.shards {
		if sw.out.err != nil {
			break
		}
		sw.addShard(&s.shards[i])
	}
	sw.out.add(binary.LittleEndian.AppendUint64([]byte{endRecord}, uint64(sw.counters)))
	err := sw.out.close()
	return SnapshotStats{SavedAt: now, Counters: sw.counters}, err
}

// snapshotWriter writes the counters of a store.
type snapshotWriter struct {
	out        *chunkWriter
	now        int64
	counters   int64
	slots      []slot // copies of those of a shard.
	wideStates []wideState
	longIDs    []counterID // the counters of a shard whose states have no fixed length.
	names      []byte      // a copy of the names of a shard.
	encoded    []byte
}

// maxCopiedBytes is how many bytes of states of no fixed length are copied at a time.
const maxCopiedBytes = 32 << 10

// addShard adds the live counters of sh.
func (w *snapshotWriter) addShard(sh *shard) {
	w.wideStates, w.longIDs = w.wideStates[:0], w.longIDs[:0]
	sh.mu.Lock()
	w.slots = append(w.slots[:0], sh.slots...)
	if sh.overflow != nil {
		w.wideStates = append(w.wideStates, sh.overflow.wideStates.items...)
	}
	sh.mu.Unlock()
	for i := range w.slots {
		sl := &w.slots[i]
		if !sl.isLive(w.now) {
			continue
		}
		switch sl.form() {
		case logForm, heldForm:
			w.longIDs = append(w.longIDs, sl.id())
			continue
		case wideForm:
			w.encoded = sl.appendTo(w.encoded[:0], wideRecord)
			w.encoded, _ = binary.Append(w.encoded, binary.LittleEndian, w.wideStates[sl.stateOrIndex][:])
		default:
			w.encoded = sl.appendTo(w.encoded[:0], inlineRecord)
		}
		w.counters++
		w.out.add(w.encoded)
	}
	for len(w.longIDs) > 0 && w.out.err == nil {
		w.addLongCounters(sh)
	}
	if sh.names != nil {
		w.addNames(sh)
	}
}

// addNames adds the names of sh.
func (w *snapshotWriter) addNames(sh *shard) {
	sh.mu.Lock()
	w.names = append(w.names[:0], sh.names.entries...)
	sh.mu.Unlock()
	for rest := w.names; len(rest) > 0; {
		_, size := firstEntry(rest)
		w.encoded = binary.LittleEndian.AppendUint16(append(w.encoded[:0], nameRecord), uint16(size))
		w.out.add(w.encoded)
		w.out.add(rest[:size])
		rest = rest[size:]
	}
}

// addLongCounters adds the first counters of w.longIDs, as many as are copied at a time.
func (w *snapshotWriter) addLongCounters(sh *shard) {
	w.encoded = w.encoded[:0]
	sh.mu.Lock()
	for len(w.longIDs) > 0 && len(w.encoded) < maxCopiedBytes {
		if sl, _ := sh.findSlot(w.longIDs[0], w.now); sl != nil {
			w.encoded = sh.appendLongCounter(w.encoded, sl)
			w.counters++
		}
		w.longIDs = w.longIDs[1:]
	}
	sh.mu.Unlock()
	w.out.add(w.encoded)
	if cap(w.encoded) > 4*maxCopiedBytes {
		w.encoded = nil
	}
}

// appendLongCounter appends the record of a counter with a log or holds to b.
func (sh *shard) appendLongCounter(b []byte, sl *slot) []byte {
	kind, state := byte(logRecord), encoding.BinaryAppender(nil)
	if sl.form() == heldForm {
		kind, state = heldRecord, &sh.overflow.heldStates.items[sl.stateOrIndex]
	} else {
		state = &sh.overflow.logs.items[sl.stateOrIndex]
	}
	b = sl.appendTo(b, kind)
	lengthAt := len(b)
	b, _ = state.AppendBinary(append(b, 0, 0, 0, 0)) // It returns no error.
	binary.LittleEndian.PutUint32(b[lengthAt:], uint32(len(b)-lengthAt-4))
	return b
}

// appendTo appends the kind of a record and sl to b.
func (sl *slot) appendTo(b []byte, kind byte) []byte {
	b = append(b, kind)
	b = binary.LittleEndian.AppendUint64(b, sl.idHash)
	b = binary.LittleEndian.AppendUint32(b, sl.tagFormRank&^formMask)
	b = binary.LittleEndian.AppendUint32(b, sl.lastUseSecond)
	b = binary.LittleEndian.AppendUint64(b, sl.stateOrIndex)
	return binary.LittleEndian.AppendUint64(b, uint64(sl.expiresAt))
}

// ReadSnapshot adds the counters of the snapshot r that have not expired. The store must be new: no hit may have come
// yet, and none may come meanwhile. If the store has too little room, it keeps the counters that matter most, as
// documented at evictionRank. After an error the store is empty. The error says what is wrong with the snapshot.
func (s *Store) ReadSnapshot(r io.Reader, now time.Time) (st SnapshotStats, err error) {
	defer func() {
		if err != nil {
			s.clear()
		}
	}()
	sr := snapshotReader{store: s, now: now.UnixNano()}
	if sr.in, err = newChunkReader(r); err != nil {
		return st, err
	}
	if err := sr.readHeader(); err != nil {
		return st, sr.explained(err)
	}
	for more := true; more; {
		if more, err = sr.readRecord(); err != nil {
			return st, sr.explained(err)
		}
	}
	if n, err := sr.in.Read(sr.buffer[:1]); n > 0 || err != io.EOF {
		return st, sr.explained(err)
	}
	evicted := s.budget.evictedCounters.Load()
	return SnapshotStats{SavedAt: sr.savedAt, Counters: sr.added - evicted, Expired: sr.expired, Evicted: evicted}, nil
}

// clear drops all counters and chooses a new key.
func (s *Store) clear() {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.freeAllMemory()
		sh.mu.Unlock()
	}
	s.hashKey = siphash.RandomKey()
	s.budget.evictedCounters.Store(0)
}

// snapshotReader adds the counters of a snapshot to a store.
type snapshotReader struct {
	store          *Store
	in             *chunkReader
	now            int64
	savedAt        time.Time
	graceChange    int64 // added to each slot.expiresAt.
	added, expired int64
	buffer         [maxEntryHead + maxNameBytes]byte
	encoded        []byte
}

// errMalformed is the error of records that no store writes.
var errMalformed = errors.New("it has a record that is not valid")

// explained returns err as an error that says what is wrong with the snapshot.
func (r *snapshotReader) explained(err error) error {
	// The stream has whole chunks, and does not end with a record.
	if err == nil || err == io.EOF || err == io.ErrUnexpectedEOF {
		err = errMalformed
	}
	if errors.Is(err, errMalformed) {
		return fmt.Errorf("%w, before byte %d", err, r.in.offset)
	}
	return err
}

// read returns the next n bytes of the stream. They are valid until the next call.
func (r *snapshotReader) read(n int) ([]byte, error) {
	b := r.buffer[:n]
	_, err := io.ReadFull(r.in, b)
	return b, err
}

func (r *snapshotReader) readHeader() error {
	b, err := r.read(headerBytes)
	if err != nil {
		return err
	}
	var numbers [4]uint64
	_, _ = binary.Decode(b, binary.LittleEndian, numbers[:]) // The length is right.
	r.savedAt = time.Unix(0, int64(numbers[0])).UTC()
	grace := int64(numbers[1])
	if grace < 0 || grace > int64(MaxExpiryGrace) {
		return errMalformed
	}
	if ahead := r.savedAt.Sub(time.Unix(0, r.now)); ahead > maxSnapshotSkew {
		return fmt.Errorf("it is of %s, %v ahead of the clock of this machine", r.savedAt.Format(time.RFC3339),
			ahead.Round(time.Second))
	}
	r.graceChange = r.store.budget.graceNanos - grace
	r.store.hashKey = siphash.Key{numbers[2], numbers[3]}
	return nil
}

// readRecord reads a record. more is false after the last one.
func (r *snapshotReader) readRecord() (more bool, err error) {
	b, err := r.read(1)
	if err != nil {
		return false, err
	}
	kind := b[0]
	switch kind {
	case inlineRecord, wideRecord, logRecord, heldRecord:
		return true, r.readCounter(kind)
	case nameRecord:
		return true, r.readName()
	case endRecord:
		if b, err = r.read(8); err == nil && int64(binary.LittleEndian.Uint64(b)) != r.added+r.expired {
			err = errMalformed
		}
		return false, err
	}
	return false, errMalformed
}

// readCounter reads a counter, and adds it to the store unless it has expired.
func (r *snapshotReader) readCounter(kind byte) error {
	b, err := r.read(slotBytes)
	if err != nil {
		return err
	}
	sl := slot{
		idHash: binary.LittleEndian.Uint64(b), tagFormRank: binary.LittleEndian.Uint32(b[8:]),
		lastUseSecond: binary.LittleEndian.Uint32(b[12:]),
		stateOrIndex:  binary.LittleEndian.Uint64(b[16:]), expiresAt: int64(binary.LittleEndian.Uint64(b[24:])),
	}
	if r.in.version == 1 {
		sl.tagFormRank &^= heldForm
	}
	if sl.form() != 0 || sl.rank() >= numRanks {
		return errMalformed
	}
	if sl.expiresAt != math.MaxInt64 { // MaxInt64 means never.
		sl.expiresAt += r.graceChange
	}
	var st overflowState
	switch kind {
	case wideRecord:
		if b, err = r.read(wideStateBytes); err != nil {
			return err
		}
		_, _ = binary.Decode(b, binary.LittleEndian, st.wide[:]) // The length is right.
	case logRecord:
		if err = r.readLong(&st.log, algorithm.MaxLogBytes); err != nil || st.log.Len() == 0 {
			return cmp.Or(err, errMalformed)
		}
	case heldRecord:
		if err = r.readLong(&st.held, algorithm.MaxHeldBytes); err != nil {
			return err
		}
	}
	if sl.expiresAt <= r.now {
		r.expired++
		return nil
	}
	return r.addCounter(kind, sl, &st)
}

// overflowState is a state in the overflow of a shard. Its kind of record says which field holds it.
type overflowState struct {
	wide wideState
	log  algorithm.Log
	held algorithm.HeldState
}

// readName reads a name, and adds it to the store if that has the counter and keeps names.
func (r *snapshotReader) readName() error {
	b, err := r.read(2)
	if err != nil {
		return err
	}
	size := int(binary.LittleEndian.Uint16(b))
	if size > len(r.buffer) {
		return errMalformed
	}
	if b, err = r.read(size); err != nil {
		return err
	}
	e, ok := parseEntry(b)
	if !ok {
		return errMalformed
	}
	e.isHeld = e.isHeld && r.in.version > 1
	s := r.store
	sh := s.shardOf(e.id.hash & math.MaxUint32)
	sh.mu.Lock()
	if sh.names != nil && sh.slotIndex(e.id) >= 0 {
		sh.addName(&e, nil, r.now)
	}
	sh.mu.Unlock()
	if s.budget.isExceeded(0) {
		s.freeMemory(false, r.now)
	}
	return nil
}

// readLong reads an encoded state of at most that many bytes. Its memory grows with what was read, so that a wrong
// length needs none.
func (r *snapshotReader) readLong(state encoding.BinaryUnmarshaler, most int64) error {
	b, err := r.read(4)
	if err != nil {
		return err
	}
	length := int64(binary.LittleEndian.Uint32(b))
	if length > most {
		return errMalformed
	}
	for r.encoded = r.encoded[:0]; int64(len(r.encoded)) < length; {
		start, n := len(r.encoded), int(min(length-int64(len(r.encoded)), maxChunkBytes))
		r.encoded = slices.Grow(r.encoded, n)[:start+n]
		if _, err := io.ReadFull(r.in, r.encoded[start:]); err != nil {
			return err
		}
	}
	if state.UnmarshalBinary(r.encoded) != nil {
		return errMalformed
	}
	return nil
}

// addCounter adds a counter to its shard. sl has no form yet.
func (r *snapshotReader) addCounter(kind byte, sl slot, st *overflowState) error {
	s := r.store
	sh := s.shardOf(sl.idHash & math.MaxUint32)
	sh.mu.Lock()
	live, expired := sh.findSlot(sl.id(), r.now)
	if live != nil {
		sh.mu.Unlock()
		return errMalformed // No counter is in a snapshot twice.
	}
	added := sh.takeSlot(sl.id(), expired, r.now)
	added.tagFormRank |= sl.tagFormRank & rankMask
	added.lastUseSecond, added.stateOrIndex, added.expiresAt = sl.lastUseSecond, sl.stateOrIndex, sl.expiresAt
	switch kind {
	case wideRecord:
		sh.setWideState(added, st.wide)
	case logRecord:
		addLongState(sh, &sh.ensureOverflow().logs, added, logForm, st.log, st.log.Bytes())
	case heldRecord:
		addLongState(sh, &sh.ensureOverflow().heldStates, added, heldForm, st.held, st.held.Bytes())
	}
	sh.mu.Unlock()
	r.added++
	if s.budget.isExceeded(0) {
		s.freeMemory(false, r.now)
	}
	return nil
}
