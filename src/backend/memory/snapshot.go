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
// A name follows the counters of its shard: the length of the rest in 2 bytes, the hash of the counter's id (8 bytes),
// its tag with nameEntry.kindByte in the low bits (4 bytes), the period in microseconds (a varint), the length of the
// name (1 byte) and the name.
const (
	inlineRecord = 'I'
	wideRecord   = 'W'
	logRecord    = 'L'
	heldRecord   = 'H'
	nameRecord   = 'N'
	endRecord    = 'E' // the last record: the number of counters in 8 bytes.

	headerBytes     = 32 // the size of the header: the time, the grace and the key of the hash.
	slotRecordBytes = 1 + slotBytes
	maxNameHead     = 8 + 4 + binary.MaxVarintLen64 + 1 // the size of the longest name without its text and its length.
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
// shard is held only for a copy of its table and one of its names, of at most 224 KiB, and for copies of its sliding
// windows and holds, of 32 KiB or of one counter at a time.
//
// It needs some 450 KiB of memory, and as much as the largest counter: 16 bytes for each hit of a sliding window, and
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
	names      nameLog     // a copy of the names of a shard.
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
	if sh.names != nil {
		w.names.entries = append(w.names.entries[:0], sh.names.entries...)
		w.names.refs, w.names.bases = append(w.names.refs[:0], sh.names.refs...), sh.names.bases
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
		w.addNames()
	}
}

// addNames adds the names of the live counters of the shard that was copied.
func (w *snapshotWriter) addNames() {
	var buffer [maxNameBytes]byte
	for i, ref := range w.names.refs {
		if sl := &w.slots[i]; ref != 0 && sl.isLive(w.now) {
			e := w.names.entry(ref, &buffer)
			w.encoded = e.appendRecord(w.encoded[:0], sl.id())
			w.out.add(w.encoded)
		}
	}
}

// appendRecord appends the record of the name of a counter to b.
func (e *nameEntry) appendRecord(b []byte, id counterID) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint64(append(b, nameRecord, 0, 0), id.hash)
	b = binary.LittleEndian.AppendUint32(b, id.tag|uint32(e.kindByte()))
	b = binary.AppendUvarint(b, uint64(e.period/time.Microsecond))
	b = append(append(b, byte(len(e.name))), e.name...)
	binary.LittleEndian.PutUint16(b[start+1:], uint16(len(b)-start-3))
	return b
}

// parseNameRecord returns the name that b holds, the end of its record, and the id of its counter. ok is false if b
// holds anything else.
func parseNameRecord(b []byte) (e nameEntry, id counterID, ok bool) {
	if len(b) < maxNameHead-binary.MaxVarintLen64+1 {
		return e, id, false
	}
	tag := binary.LittleEndian.Uint32(b[8:])
	micros, n := binary.Uvarint(b[12:])
	start := 12 + n + 1
	if n <= 0 || micros > uint64(algorithm.MaxPeriod/time.Microsecond) || start > len(b) ||
		len(b) != start+int(b[start-1]) {
		return e, id, false
	}
	e.kind, e.isHeld = kindOf(byte(tag))
	e.period, e.name = time.Duration(micros)*time.Microsecond, b[start:]
	return e, counterID{binary.LittleEndian.Uint64(b), tag &^ (formMask | rankMask)}, e.kind.Valid()
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
	buffer         [maxNameHead + maxNameBytes]byte
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
	e, id, ok := parseNameRecord(b)
	if !ok {
		return errMalformed
	}
	e.isHeld = e.isHeld && r.in.version > 1
	s := r.store
	sh := s.shardOf(id.hash & math.MaxUint32)
	sh.mu.Lock()
	if sh.names != nil && sh.slotIndex(id) >= 0 {
		_, ref := sh.addName(&e, nil, r.now)
		if i := sh.slotIndex(id); i >= 0 { // It was not evicted to make room.
			sh.names.refs[i] = ref
		}
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
	if sh.names != nil {
		*sh.slotRef(added) = 0 // It follows.
	}
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
