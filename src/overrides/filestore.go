package overrides

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// FileStore keeps the overrides of one process, in a file if it has one. Each line of the file has a checksum and what
// was changed. A change is written and synced before it is in force.
type FileStore struct {
	path string // empty for none

	mu      sync.Mutex // guards the fields below
	kept    packedSet
	history []Record // the oldest first
	version uint64
	lines   int       // in the file
	nextEnd time.Time // when the first override ends, or before that; zero for never
}

// fileLine is a line of the file, as JSON behind its checksum. It has one of the fields.
type fileLine struct {
	Set    *Override `json:"set,omitempty"`
	Unset  *ID       `json:"unset,omitempty"`
	Record *Record   `json:"record,omitempty"`
}

var checksums = crc32.MakeTable(crc32.Castagnoli)

// OpenFile returns a store that keeps the overrides in the file at path, which need not exist. An empty path keeps them
// in memory. cut is set if the last line was incomplete, because the process was killed while it wrote it.
func OpenFile(path string) (s *FileStore, cut bool, err error) {
	s = &FileStore{path: path, kept: make(packedSet)}
	if path == "" {
		return s, false, nil
	}
	cut, err = s.read()
	if err == nil {
		err = s.rewrite()
	}
	if err != nil {
		return nil, false, fmt.Errorf("overrides: %w", err)
	}
	return s, cut, nil
}

// maxLineBytes is more than any line has.
const maxLineBytes = 64 << 10

// read applies the lines of the file.
func (s *FileStore) read() (cut bool, err error) {
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }() // A file that was only read loses nothing.
	in := bufio.NewReaderSize(f, maxLineBytes)
	for n := 1; ; n++ {
		text, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return len(text) > 0, nil
		}
		if err != nil {
			return false, fmt.Errorf("%s:%d: %w", s.path, n, err)
		}
		line, err := decodeLine(text)
		if err != nil {
			return false, fmt.Errorf("%s:%d:1: %w: restore the file, or move it away to start without overrides", s.path, n, err)
		}
		s.apply(&line)
	}
}

var errDamaged = errors.New("the line is damaged, its checksum is another one")

func decodeLine(text []byte) (line fileLine, err error) {
	sum, data, found := bytes.Cut(bytes.TrimSuffix(text, []byte("\n")), []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if err != nil || !found || crc32.Checksum(data, checksums) != uint32(want) {
		return line, errDamaged
	}
	return line, json.Unmarshal(data, &line)
}

func encodeLines(lines []fileLine) (text []byte, err error) {
	for i := range lines {
		data, err := json.Marshal(&lines[i])
		if err != nil {
			return nil, err
		}
		text = fmt.Appendf(text, "%08x %s\n", crc32.Checksum(data, checksums), data)
	}
	return text, nil
}

// apply changes what s has as line says.
func (s *FileStore) apply(line *fileLine) {
	switch {
	case line.Set != nil:
		if end := line.Set.Until; !end.IsZero() && (s.nextEnd.IsZero() || end.Before(s.nextEnd)) {
			s.nextEnd = end
		}
		s.version++
		s.kept.put(Versioned{*line.Set, s.version})
	case line.Unset != nil:
		s.kept.remove(*line.Unset)
	case line.Record != nil:
		s.history = append(s.history, *line.Record)
		if excess := len(s.history) - MaxHistory; excess > 0 {
			s.history = slices.Delete(s.history, 0, excess)
		}
	}
}

// rewrite replaces the file by one that has only what is kept.
func (s *FileStore) rewrite() error {
	var lines []fileLine
	for i := range s.history {
		lines = append(lines, fileLine{Record: &s.history[i]})
	}
	for v := range s.kept.all() {
		lines = append(lines, fileLine{Set: &v.Override})
	}
	text, err := encodeLines(lines)
	if err != nil {
		return err
	}
	s.lines = len(lines)
	f, err := os.CreateTemp(filepath.Dir(s.path), filepath.Base(s.path)+".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // It fails once the file has its name.
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), s.path)
}

// add appends lines to the file.
func (s *FileStore) add(lines []fileLine) error {
	if s.path == "" || len(lines) == 0 {
		return nil
	}
	text, err := encodeLines(lines)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		if _, err = f.Write(text); err == nil {
			err = f.Sync()
		}
		if err != nil { // A part of a line must not stay in front of the next one.
			err = errors.Join(err, f.Truncate(size))
		}
	}
	s.lines += len(lines)
	return errors.Join(err, f.Close())
}

// fileEpoch is the Delta.Epoch of files: nothing takes their place while the process runs.
const fileEpoch = 1

// Commit implements Store.
func (s *FileStore) Commit(_ context.Context, edits []Edit, limits Limits) ([]Result, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []fileLine
	now := make(map[ID]*Override, len(edits)) // The overrides after the edits so far; nil for a removed one.
	for _, id := range s.ended(limits.Now) {
		lines = append(lines, fileLine{Unset: &id})
		now[id] = nil
	}
	count := len(s.kept) - len(now)
	results, isSet := make([]Result, len(edits)), make([]bool, len(edits))
	for i := range edits {
		e := &edits[i]
		id, o := e.ID(), e.Override
		before, edited := now[id]
		if v, kept := s.kept.get(id); !edited && kept {
			before = &v.Override
		}
		results[i].Before = before
		record := Record{At: limits.Now, Action: ActionSet, Override: o, Before: before, By: e.By}
		switch {
		case e.Remove && before == nil, e.OnlyAbsent && before != nil:
			continue
		case e.Remove:
			record.Action, now[id] = ActionUnset, nil
			count--
			lines = append(lines, fileLine{Unset: &id})
		default:
			if before == nil {
				count++
			}
			now[id], isSet[i] = &o, true
			lines = append(lines, fileLine{Set: &o})
		}
		if !e.OnlyAbsent {
			lines = append(lines, fileLine{Record: &record})
		}
	}
	if count > limits.MaxKept && count > len(s.kept) {
		return nil, 0, fmt.Errorf("%w; at most %d are kept", ErrTooMany, limits.MaxKept)
	}
	if err := s.add(lines); err != nil {
		return nil, 0, err
	}
	for i := range lines {
		s.apply(&lines[i])
	}
	for i := range edits {
		if isSet[i] {
			v, _ := s.kept.get(edits[i].ID())
			results[i].Version = v.Version
		}
	}
	if s.path != "" && s.lines > 2*(len(s.kept)+len(s.history))+1000 {
		return results, fileEpoch, s.rewrite()
	}
	return results, fileEpoch, nil
}

// ended returns the IDs of overrides that have ended before now, and sets nextEnd for the others.
func (s *FileStore) ended(now time.Time) (ids []ID) {
	if s.nextEnd.IsZero() || !s.nextEnd.Before(now) {
		return nil
	}
	s.nextEnd = time.Time{}
	for v := range s.kept.all() {
		switch end := v.Until; {
		case end.IsZero():
		case end.Before(now):
			ids = append(ids, v.ID())
		case s.nextEnd.IsZero() || end.Before(s.nextEnd):
			s.nextEnd = end
		}
	}
	return ids
}

// Read implements Store.
func (s *FileStore) Read(context.Context, uint64) (*Delta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &Delta{Whole: true, Position: s.version, Count: len(s.kept), Epoch: fileEpoch}
	for v := range s.kept.all() {
		d.Set = append(d.Set, v)
		d.Sum = (d.Sum + v.Version) % SumModulus
	}
	return d, nil
}

// History implements Store.
func (s *FileStore) History(context.Context) ([]Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Clone(s.history)
	slices.Reverse(list)
	return list, nil
}

// Pause implements Store.
func (*FileStore) Pause() time.Duration { return 0 }
